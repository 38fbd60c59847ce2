-- One row per run of these, in time order: what a document did there.
with wanted as (select unnest($run_ids::varchar[]) as run_id),

-- The contents that have it are few: looked for first, and once for all runs.
contents as (
    select sample_id, input_hash, context_rank
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
),

placed as (
    select run_id, sample_id, context_rank
    from (from run_samples where run_id in (select run_id from wanted)) as run_samples
    inner join contents using (sample_id, input_hash)
),

misleading as (
    select distinct run_id, sample_id, context_rank
    from placed
    inner join (from attributions where run_id in (select run_id from wanted)) as attributions using (run_id, sample_id)
    inner join (from classifications where run_id in (select run_id from wanted)) as classifications
        using (run_id, sample_id, statement_id)
    where label = 'FP'
        and starts_with(statement_id, 'A')
        and list_contains(list_concat(context_ranks, joint_ranks), context_rank)
),

used as (
    select
        run_id,
        sample_id,
        bool_or(useful) as useful,
        bool_or(misleading.sample_id is not null) as misleads
    from placed
    left join (from context_verdicts where run_id in (select run_id from wanted)) as judged
        using (run_id, sample_id, context_rank)
    left join misleading using (run_id, sample_id, context_rank)
    group by run_id, sample_id
)

select
    runs.run_id,
    runs.started_at,
    runs.kb_version,
    count(used.sample_id) as n_retrieved,
    count(useful) as n_judged,
    count(*) filter (where useful) as n_useful,
    count(*) filter (where misleads) as n_misleads
from (from runs where run_id in (select run_id from wanted)) as runs
left join used using (run_id)
group by runs.run_id, runs.started_at, runs.kb_version
order by runs.started_at, runs.run_id
