-- One row per statement that was found, with its verdicts and the calls that gave them. Of the tables and not of the view
-- `verdicts`, which would be put together by statement again in three times the time.
select
    statements.sample_id,
    statements.statement_id as id,
    statements.source,
    statements.text,
    statements.call_id as extract_call_id,
    classifications.label,
    classifications.reason as label_reason,
    classifications.call_id as classify_call_id,
    attributions.supported,
    attributions.context_ranks,
    attributions.joint_ranks,
    attributions.turn_ranks,
    attributions.reason as support_reason,
    attributions.call_id as attribute_call_id,
    cited.cited_ranks,
    cited.cited_in_vain
from slice
inner join statements on statements.sample_id = slice.sample_id
left join classifications
    on classifications.run_id = $run_id
    and classifications.sample_id = statements.sample_id
    and classifications.statement_id = statements.statement_id
left join attributions
    on attributions.run_id = $run_id
    and attributions.sample_id = statements.sample_id
    and attributions.statement_id = statements.statement_id
left join (
    select
        sample_id,
        statement_id,
        list(distinct context_rank order by context_rank) filter (where context_rank is not null) as cited_ranks,
        list(distinct marker order by marker) filter (where context_rank is null) as cited_in_vain
    from citations
    where run_id = $run_id
    group by sample_id, statement_id
) as cited
    on cited.sample_id = statements.sample_id
    and cited.statement_id = statements.statement_id
where statements.run_id = $run_id
order by statements.sample_id, statements.source, statements.ordinal, statements.statement_id
