-- One row per text that a document has had in these runs, in the order they came.
with wanted as (select unnest($run_ids::varchar[]) as run_id),

contents as (
    select sample_id, input_hash, contexts[context_rank] as text
    from (
        select
            sample_id,
            input_hash,
            contexts,
            context_ids,
            unnest(range(1, len(contexts) + 1)) as context_rank
        from samples
        where list_contains(context_ids, $document) or not $has_id
    )
    where coalesce(context_ids[context_rank], 'text ' || left(if(starts_with(contexts[context_rank], 'forgotten on '), right(contexts[context_rank], 17), md5(contexts[context_rank])), 12)) = $document
)

select
    text,
    min_by(run_id, (started_at, run_id)) as first_run_id,
    max_by(run_id, (started_at, run_id)) as last_run_id,
    min(started_at) as first_at,
    max(started_at) as last_at,
    count(distinct run_id) as n_runs
from contents
inner join (from run_samples where run_id in (select run_id from wanted)) as run_samples using (sample_id, input_hash)
inner join runs using (run_id)
group by text
order by first_at, last_at, text
