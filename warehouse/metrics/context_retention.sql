-- metric: context_retention
-- version: 1
-- needs: turns
-- correctable: no, ratio
-- meaning: How much the answer heeds of the user's earlier turns that matter for the question
-- One row per sample of the run: the share of the points that the user made in earlier turns, and that matter for this
-- question, which the answer heeds; NULL where no turn came before the question, and where none of it matters.
with steps as (
    select run_id, sample_id, reason
    from sample_steps
    where step = 'turns'
),

counted as (
    select
        run_id,
        sample_id,
        count(*) filter (where label = 'heeded') as n_heeded,
        count(*) filter (where label in ('heeded', 'ignored')) as n_points
    from turn_verdicts
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_heeded / nullif(n_points, 0) end as value,
    case when value is null then coalesce(reason, 'nothing_to_heed') end as unscored_reason
from steps
left join counted using (run_id, sample_id)
where run_id = $run_id
