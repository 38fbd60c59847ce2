-- metric: recall_at_k
-- version: 5
-- needs: rank?
-- parameter: k = 5
-- meaning: How many of the right documents are among the first few that were retrieved
-- One row per sample of the run: distinct reference ids that a context among the first k matches, divided by the number
-- of distinct reference ids; a document counts once, however many of its passages were retrieved. The judge's verdicts
-- have no such metric: they do not say what was not retrieved.
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
    case when reason is null then coalesce(list_sum(gains[1:k]), 0) / n_relevant end as value,
    reason as unscored_reason
from sample_rankings
cross join checked
where run_id = $run_id
