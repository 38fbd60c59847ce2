-- One row per document of these: one of its texts.
select
    coalesce(context_ids[context_rank], 'text ' || left(if(starts_with(contexts[context_rank], 'forgotten on '), right(contexts[context_rank], 17), md5(contexts[context_rank])), 12)) as document,
    any_value(contexts[context_rank]) as text
from (
    select samples.contexts, samples.context_ids, unnest(range(1, len(samples.contexts) + 1)) as context_rank
    from run_samples
    inner join samples using (sample_id, input_hash)
    where run_samples.run_id = $run_id
)
where document in (select document from wanted)
group by document
