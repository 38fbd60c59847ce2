-- metric: mrr_retrieved
-- version: 1
-- needs: rank
-- correctable: no, ranks
-- meaning: How near to the top the first useful context is: 1 is first, 0.5 second, 0 not found
-- One row per sample of the run: 1 / rank of the first context that the judge finds useful; 0 without one.
select
    run_id,
    sample_id,
    case when useful_reason is null then coalesce(1 / nullif(list_position(useful_gains, 1), 0), 0) end as value,
    useful_reason as unscored_reason
from sample_rankings
where run_id = $run_id
