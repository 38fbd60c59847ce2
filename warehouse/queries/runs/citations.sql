-- One row: of how many answers of a run the citations were read, how many there are, how many name no context, one of these
-- as written, and how many of them are a number 0.
with cited as (
    select max(context_rank) as context_rank, any_value(marker) as marker
    from citations
    where run_id = $run_id
    group by sample_id, ordinal
)

select
    (
        select count(distinct sample_id)
        from scores
        where run_id = $run_id and metric like 'citation\_%' escape '\' and coalesce(unscored_reason, '') in ('', 'no_citations')
    ) as n_answers,
    count(*) as n_citations,
    count(*) filter (where context_rank is null) as n_unknown,
    any_value(marker) filter (where context_rank is null) as unknown,
    count(*) filter (where context_rank is null and regexp_full_match(marker, '[^0-9]*0[^0-9]*')) as n_zero
from cited
