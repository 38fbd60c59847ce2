-- One row per citation of a statement of an answer, with what the judge's verdicts on the statement say of it.
create or replace view statement_citations as
with named as (
    select
        run_id,
        sample_id,
        statement_id,
        ordinal,
        any_value(marker) as marker,
        coalesce(list(context_rank order by context_rank) filter (where context_rank is not null), []) as ranks
    from citations
    where statement_id is not null
    group by run_id, sample_id, statement_id, ordinal
),

together as (
    select
        named.*,
        count(*) over of_statement as n_citations,
        bool_and(len(ranks) > 0) over of_statement as all_retrieved,
        flatten(list(ranks) over of_statement) as cited_ranks,
        flatten(coalesce(list(ranks) over (
            of_statement rows between unbounded preceding and unbounded following exclude current row
        ), [])) as other_ranks
    from named
    window of_statement as (partition by run_id, sample_id, statement_id)
)

select
    together.run_id,
    together.sample_id,
    together.statement_id,
    together.ordinal,
    together.marker,
    together.ranks,
    together.n_citations,
    together.all_retrieved,
    -- One of the contexts that support the statement alone is among them, or all that do so together are.
    list_has_any(cited_ranks, context_ranks) or (len(joint_ranks) > 0 and list_has_all(cited_ranks, joint_ranks))
        as supported,
    list_has_any(ranks, context_ranks) or (len(joint_ranks) > 0 and list_has_all(ranks, joint_ranks))
        as supported_alone,
    list_has_any(other_ranks, context_ranks) or (len(joint_ranks) > 0 and list_has_all(other_ranks, joint_ranks))
        as supported_without
from together
inner join attributions
    on attributions.run_id = together.run_id
    and attributions.sample_id = together.sample_id
    and attributions.statement_id = together.statement_id;

comment on view statement_citations is 'One row per citation of a statement of an answer that was attributed, with what the verdict on the statement says of it.';
comment on column statement_citations.run_id is 'Run.';
comment on column statement_citations.sample_id is 'Sample.';
comment on column statement_citations.statement_id is 'Statement of the answer: A1, A2, …';
comment on column statement_citations.ordinal is 'Place of the citation in the answer, from 1.';
comment on column statement_citations.marker is 'The mark as written.';
comment on column statement_citations.ranks is 'Ranks of the contexts that it names; empty when it names nothing that was retrieved.';
comment on column statement_citations.n_citations is 'Citations of the statement.';
comment on column statement_citations.all_retrieved is 'Whether each citation of the statement names something that was retrieved.';
comment on column statement_citations.supported is 'Whether all that the statement cites supports it, together.';
comment on column statement_citations.supported_alone is 'Whether what this citation names supports the statement by itself.';
comment on column statement_citations.supported_without is 'Whether what the statement''s other citations name supports it.';
