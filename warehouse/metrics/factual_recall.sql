-- metric: factual_recall
-- version: 1
-- needs: classify
-- default: yes, place 2
-- correctable: no, ratio
-- meaning: How complete the answer is: its right statements, compared with the ones it leaves out
-- One row per sample of the run: TP / (TP + FN), where TP counts answer statements and FN the ground-truth
-- statements the answer leaves out; NULL when the ground truth has no statements. It is 0, as factual_f1
-- is, where there are such statements and the verdicts contradict each other: none is left out (no FN), though no
-- statement of the answer is right (no TP).
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null and n_ground_truth > 0 then n_tp / greatest(n_tp + n_fn, 1) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
