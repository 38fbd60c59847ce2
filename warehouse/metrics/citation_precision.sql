-- metric: citation_precision
-- version: 4
-- needs: attribute_answer, citations
-- correctable: no, joined
-- meaning: How many of the answer's citations support what they are given for
-- One row per sample of the run: of the citations of statements that cite only what was retrieved, the share that has
-- part in the support: all that its statement cites supports it together, and the citation does so alone or the others
-- without it do not. 0 when no statement cites only what was retrieved; NULL when no statement cites anything. Source:
-- ALCE (Gao et al. 2023, arXiv:2305.14627), whose script leaves citations beside one of nothing out as this does, and
-- gives 0 to an answer without any. What the verdicts decide and what they approximate is as in citation_recall; a
-- citation beside one that supports the statement alone counts only if it does so too, which is ALCE's very rule.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step in ('attribute_answer', 'citations')
    group by run_id, sample_id
),

counted as (
    select
        run_id,
        sample_id,
        count(*) filter (where all_retrieved) as n_citations,
        count(*) filter (where all_retrieved and supported and (n_citations = 1 or supported_alone or not supported_without))
            as n_supporting
    from statement_citations
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then if(n_citations = 0, 0, n_supporting / n_citations) end as value,
    case when value is null then coalesce(reason, 'no_citations') end as unscored_reason
from steps
left join counted using (run_id, sample_id)
where run_id = $run_id
