-- metric: ndcg_retrieved
-- version: 1
-- needs: rank
-- parameter: k = 5
-- correctable: no, ranks
-- meaning: How well the retrieved contexts are ordered, the useful ones first
-- One row per sample of the run: sum of gain / log2(rank + 1) over the first k, divided by the same sum for the best
-- order of the contexts that were retrieved; 0 when the judge finds none useful. It says how well they were ordered, and
-- nothing of what was not retrieved; the formula is that of ndcg_at_k.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric ndcg_retrieved: k must be a whole number from 1, but it is ' || $k)
        end as k
)

select
    run_id,
    sample_id,
    case when useful_reason is null then coalesce(
        list_sum(list_transform(useful_gains[1:k], lambda gain, rank: gain / log2(rank + 1)))
        / list_sum(list_transform(
            range(1, least(list_sum(useful_gains), k)::bigint + 1), lambda rank: 1 / log2(rank + 1)
        )),
        0
    ) end as value,
    useful_reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
