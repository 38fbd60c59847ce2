-- One row per metric of a run: its mean with the interval, and the samples to which it applies: scored samples
-- and those for which something failed. A reason that is not on the list counts as a failure.
with failures as (
    select scores.metric, count(*) as n_failed
    from scores
    left join unscored_reasons on unscored_reasons.reason = scores.unscored_reason
    where scores.run_id = $run_id and scores.value is null and coalesce(unscored_reasons.is_failure, true)
    group by scores.metric
)

select
    metric, better, mean, ci_low, ci_high, minimum, cluster, n_clusters, n_scored,
    n_scored + coalesce(n_failed, 0) as n_applicable
from run_scores
left join failures using (metric)
where run_id = $run_id
