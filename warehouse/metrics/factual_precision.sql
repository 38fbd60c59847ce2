-- metric: factual_precision
-- version: 1
-- needs: classify
-- default: yes, place 1
-- correctable: yes
-- meaning: How much of what the answer states is right
-- One row per sample of the run: the share of answer statements that the ground truth supports, TP / (TP + FP);
-- NULL when the answer has no statements.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_tp / nullif(n_tp + n_fp, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
