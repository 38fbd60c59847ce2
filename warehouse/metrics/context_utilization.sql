-- metric: context_utilization
-- version: 3
-- needs: classify, attribute_ground_truth
-- correctable: no, ratio
-- meaning: How much the answer says of what it could have taken from the retrieved contexts
-- One row per sample of the run: of the ground-truth statements that the retrieved contexts support, one alone or
-- several together, the share that the answer states too; NULL with no_statements when no ground-truth statement is
-- supported, for then there was nothing to use. Source: RAGChecker (Ru et al. 2024, arXiv:2408.08067), which gives 0
-- there and knows each context alone.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step in ('classify', 'attribute_ground_truth')
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_ground_truth_supported_tp / nullif(n_ground_truth_supported, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
