-- metric: citation_validity
-- version: 4
-- needs: citations
-- correctable: no, joined
-- meaning: How many of the answer's citations name something that was retrieved
-- One row per sample of the run: the share of the answer's citations that name a retrieved context; NULL when it cites
-- nothing.
with steps as (
    select run_id, sample_id, reason
    from sample_steps
    where step = 'citations'
),

counted as (
    select
        run_id,
        sample_id,
        count(distinct ordinal) as n_citations,
        count(distinct ordinal) filter (where context_rank is not null) as n_valid
    from citations
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_valid / n_citations end as value,
    case when value is null then coalesce(reason, 'no_citations') end as unscored_reason
from steps
left join counted using (run_id, sample_id)
where run_id = $run_id
