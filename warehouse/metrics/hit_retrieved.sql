-- metric: hit_retrieved
-- version: 1
-- needs: rank
-- parameter: k = 5
-- correctable: no, ranks
-- meaning: Whether a useful context is among the first few that were retrieved
-- One row per sample of the run: 1 when the judge finds one of the first k contexts useful, else 0.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric hit_retrieved: k must be a whole number from 1, but it is ' || $k)
        end as k
)

select
    run_id,
    sample_id,
    case when useful_reason is null then coalesce(list_max(useful_gains[1:k]), 0)::double end as value,
    useful_reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
