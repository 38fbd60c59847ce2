-- Contents of samples that no kept sample of a run refers to. Contents of no run at all, which a run leaves whose answers
-- came later than its questions, are among them.
create or replace temp table going_samples as
with referred as (
    select
        run_samples.sample_id,
        run_samples.input_hash,
        bool_or(gone_runs.run_id is null and gone_pairs.run_id is null) as is_kept,
        max(run_samples.run_id) as run_id
    from run_samples
    left join gone_runs on gone_runs.run_id = run_samples.run_id
    left join gone_pairs on gone_pairs.run_id = run_samples.run_id and gone_pairs.sample_id = run_samples.sample_id
    group by run_samples.sample_id, run_samples.input_hash
)

select
    samples.sample_id,
    samples.input_hash,
    referred.run_id,
    strlen(samples.question) + coalesce(strlen(samples.answer), 0) + coalesce(strlen(samples.ground_truth), 0)
        + coalesce(list_sum(list_transform(samples.contexts, lambda context: strlen(context))), 0)
        + coalesce(strlen(samples.metadata::varchar), 0) as n_bytes
from samples
left join referred
    on referred.sample_id = samples.sample_id
    and referred.input_hash = samples.input_hash
where not coalesce(referred.is_kept, false)
    and (referred.run_id is null or not is_mark(samples.question))
limit $most
