-- metric: self_knowledge
-- version: 3
-- needs: classify, attribute_answer
-- better: neutral
-- correctable: no, joined
-- meaning: How much of what the answer states is right though in no retrieved context
-- One row per sample of the run: the share of answer statements that are TP and supported by no retrieved
-- context, nor by several together, nor by an earlier turn: what the model knew by itself; NULL when the answer has no statements. Source:
-- RAGChecker (Ru et al. 2024, arXiv:2408.08067), which knows each context alone.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step in ('classify', 'attribute_answer')
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_tp_unsupported / nullif(n_answer, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
