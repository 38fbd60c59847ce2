-- metric: mrr
-- version: 5
-- needs: rank?
-- meaning: How near to the top the first right document is: 1 is first, 0.5 second, 0 not found
-- One row per sample of the run: 1 / rank of the first relevant context, by reference ids, in the whole list; 0 when
-- it is missing. Its mean over the run is the mean reciprocal rank.
select
    run_id,
    sample_id,
    case when reason is null then coalesce(1 / nullif(list_position(gains, 1), 0), 0) end as value,
    reason as unscored_reason
from sample_rankings
where run_id = $run_id
