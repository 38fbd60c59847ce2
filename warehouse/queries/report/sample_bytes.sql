-- How many bytes of texts a sample of a run has, by its first ones.
with first as (
    select sample_id, input_hash
    from run_samples
    where run_id = $run_id
    order by ordinal
    limit 200
)

select
    avg(
        strlen(coalesce(samples.contexts::varchar, '')) + strlen(coalesce(samples.answer, ''))
        + strlen(coalesce(samples.conversation::varchar, ''))
    )::bigint as n
from first
inner join samples using (sample_id, input_hash)
