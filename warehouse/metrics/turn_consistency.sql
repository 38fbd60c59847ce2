-- metric: turn_consistency
-- version: 1
-- needs: turns
-- correctable: no, ratio
-- meaning: How much of what the answer states contradicts none of the earlier answers of its conversation
-- One row per sample of the run: the share of answer statements that contradict no earlier turn of the assistant; NULL
-- where no turn came before the question, and when the answer has no statements.
with steps as (
    select run_id, sample_id, reason
    from sample_steps
    where step = 'turns'
),

counted as (
    select
        run_id,
        sample_id,
        count(*) filter (where label = 'consistent') as n_consistent,
        count(*) filter (where label in ('consistent', 'contradicts')) as n_stated
    from turn_verdicts
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_consistent / nullif(n_stated, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join counted using (run_id, sample_id)
where run_id = $run_id
