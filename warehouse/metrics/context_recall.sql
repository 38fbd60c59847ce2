-- metric: context_recall
-- version: 3
-- needs: attribute_ground_truth
-- default: yes, place 6
-- correctable: yes
-- meaning: How much of the ground truth the retrieved contexts hold
-- One row per sample of the run: the share of ground-truth statements that the retrieved contexts support, one
-- alone or several together; NULL when the ground truth has no statements.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'attribute_ground_truth'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_ground_truth_supported / nullif(n_ground_truth, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
