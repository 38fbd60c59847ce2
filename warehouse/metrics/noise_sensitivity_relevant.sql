-- metric: noise_sensitivity_relevant
-- version: 3
-- needs: classify, attribute_answer, attribute_ground_truth
-- better: low
-- correctable: no, joined
-- meaning: How much of what the answer states is wrong and taken from contexts that matter
-- One row per sample of the run: the share of answer statements that are FP and supported by at least one
-- relevant context, one that also supports a ground-truth statement, in both alone or with others; NULL when either
-- text has no statements, for without ground-truth statements no context can be relevant. Source: RAGChecker
-- (Ru et al. 2024, arXiv:2408.08067), which knows each context alone.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step in ('classify', 'attribute_answer', 'attribute_ground_truth')
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_fp_relevant / nullif(n_answer, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
