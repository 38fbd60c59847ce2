-- metric: hit_at_k
-- version: 5
-- needs: rank?
-- parameter: k = 5
-- meaning: Whether a right document is among the first few that were retrieved
-- One row per sample of the run: 1 when a relevant context, by reference ids, is among the first k, else 0.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric hit_at_k: k must be a whole number from 1, but it is ' || $k)
        end as k
)

select
    run_id,
    sample_id,
    case when reason is null then coalesce(list_max(gains[1:k]), 0)::double end as value,
    reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
