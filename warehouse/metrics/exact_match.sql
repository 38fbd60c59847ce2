-- metric: exact_match
-- version: 1
-- needs: overlap
-- One row per sample of the run: 1 when the answer is the ground truth but for white space, else 0.
with steps as (
    select run_id, sample_id, reason
    from sample_steps
    where step = 'overlap'
),

measured as (
    select run_id, sample_id, value as overlap
    from similarities
    where kind = 'exact_match'
)

select
    run_id,
    sample_id,
    case when reason is null then overlap end as value,
    case when value is null then coalesce(reason, 'no_answer') end as unscored_reason
from steps
left join measured using (run_id, sample_id)
where run_id = $run_id
