-- metric: factual_f1
-- version: 1
-- needs: classify
-- default: yes, place 4
-- correctable: no, ratio
-- meaning: How far the answer and the ground truth state the same: wrong and missing statements both lower it
-- One row per sample of the run: TP / (TP + 0.5 (FP + FN)); 0 without a TP; NULL when neither text has
-- statements. The divisor is at least 1 wherever TP is, so greatest() changes no value and spares 0 / 0.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case
        when reason is null and n_answer + n_ground_truth > 0 then n_tp / greatest(n_tp + 0.5 * (n_fp + n_fn), 1)
    end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
