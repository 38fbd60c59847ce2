-- metric: statement_recall
-- version: 1
-- needs: classify
-- default: yes, place 3
-- correctable: yes
-- meaning: How much of the ground truth the answer states
-- One row per sample of the run: the share of ground-truth statements that the answer states, 1 - FN / statements;
-- NULL when the ground truth has no statements. factual_recall sets the answer's TP against the FN, so that an answer
-- which says one thing in many statements, or many things in one, moves it; this one counts the ground truth alone.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then 1 - n_fn / nullif(n_ground_truth, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
