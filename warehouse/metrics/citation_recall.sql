-- metric: citation_recall
-- version: 4
-- needs: attribute_answer, citations
-- correctable: no, joined
-- meaning: How much of what the answer states is supported by what it cites for it
-- One row per sample of the run: the share of answer statements that all they cite, taken together, supports; 0 for a
-- statement that cites nothing, or something that was not retrieved. NULL when the answer has no statements. Source:
-- ALCE (Gao et al. 2023, arXiv:2305.14627), whose statements are the answer's sentences and whose judge reads just
-- what each cites. Here the verdict on all retrieved contexts decides, and decides the same where one cited context
-- supports the statement alone or none does; it can only approximate where the judge named one set of contexts that
-- supports it together, or contexts that do so alone: other sets that would do as well are not known.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step in ('attribute_answer', 'citations')
    group by run_id, sample_id
),

backed as (
    select run_id, sample_id, count(distinct statement_id) as n_backed
    from statement_citations
    where all_retrieved and supported
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then coalesce(n_backed, 0) / nullif(n_answer, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
left join backed using (run_id, sample_id)
where run_id = $run_id
