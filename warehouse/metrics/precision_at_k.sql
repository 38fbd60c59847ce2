-- metric: precision_at_k
-- version: 5
-- needs: rank?
-- parameter: k = 5
-- parameter: padded = 0
-- meaning: How many of the first few retrieved contexts are right ones; low where most are beside the point
-- One row per sample of the run: contexts among the first k that match a reference id, each passage of a document by
-- itself, divided by k or by the number retrieved, the smaller number; 0 when none was retrieved. With padded = 1 always divided by k, as trec_eval does: one
-- right context alone is then 0.2 at k = 5, and most of the score is how many contexts the retriever returns.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric precision_at_k: k must be a whole number from 1, but it is ' || $k)
        end as k,
        case
            when $padded in (0, 1) then $padded = 1
            else error('metric precision_at_k: padded must be 0 or 1, but it is ' || $padded)
        end as is_padded
)

select
    run_id,
    sample_id,
    case when reason is null then coalesce(
        list_sum(relevant[1:k]) / if(is_padded, k, least(k, greatest(len(relevant), 1))), 0
    ) end as value,
    reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
