-- metric: precision_retrieved
-- version: 1
-- needs: rank
-- parameter: k = 5
-- correctable: yes
-- meaning: How many of the first few retrieved contexts are useful
-- One row per sample of the run: contexts among the first k that the judge finds useful, divided by k or by the number
-- retrieved, the smaller number; 0 when none was retrieved. A repeat of an earlier text is not useful once more.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric precision_retrieved: k must be a whole number from 1, but it is ' || $k)
        end as k
)

select
    run_id,
    sample_id,
    case when useful_reason is null then coalesce(list_sum(useful_gains[1:k]) / least(k, greatest(len(useful_gains), 1)), 0) end as value,
    useful_reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
