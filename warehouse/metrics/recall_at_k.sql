-- metric: recall_at_k
-- version: 2
-- needs: rank?
-- parameter: k = 5
-- correctable: no, ratio
-- One row per sample of the run: relevant contexts among the first k, divided by all relevant ones: the distinct
-- reference ids, or without them the useful contexts among all retrieved; 0 when none is useful, as for
-- context_precision.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric recall_at_k: k must be a whole number from 1, but it is ' || $k)
        end as k
)

select
    run_id,
    sample_id,
    case when reason is null then coalesce(list_sum(gains[1:k]), 0) / greatest(n_relevant, 1) end as value,
    reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
