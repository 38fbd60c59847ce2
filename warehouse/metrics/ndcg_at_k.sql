-- metric: ndcg_at_k
-- version: 5
-- needs: rank?
-- parameter: k = 5
-- meaning: How many of the right documents are among the first few, and how near to the top
-- One row per sample of the run: sum of gain / log2(rank + 1) over the first k, divided by the same sum for a list that
-- has all relevant contexts, by reference ids, first; of several passages of a document the first one gains. Cumulated
-- gain after Järvelin and Kekäläinen (2002), ACM TOIS 20(4), with binary gains and the discount log2(rank + 1) in common
-- use.
with checked as (
    select
        case
            when $k >= 1 and $k = floor($k) then $k::bigint
            else error('metric ndcg_at_k: k must be a whole number from 1, but it is ' || $k)
        end as k
)

select
    run_id,
    sample_id,
    case when reason is null then coalesce(
        list_sum(list_transform(gains[1:k], lambda gain, rank: gain / log2(rank + 1)))
        / list_sum(list_transform(range(1, least(n_relevant, k) + 1), lambda rank: 1 / log2(rank + 1))),
        0
    ) end as value,
    reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
