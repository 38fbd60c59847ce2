-- One row per metric of a run: its mean with the interval, and the samples to which it applies: scored samples
-- and those for which something failed. A reason that is not on the list counts as a failure. Whether a metric applies
-- to a sample that failed may only show in what the bot answers, such as citations; so one that scored nothing, and had
-- nothing to judge in more samples than failed, applies to none.
with unscored as (
    select
        scores.metric,
        count(*) filter (where coalesce(unscored_reasons.is_failure, true)) as n_failed,
        count(*) filter (where reason in ('no_statements', 'no_citations', 'nothing_to_heed')) as n_empty
    from scores
    left join unscored_reasons on unscored_reasons.reason = scores.unscored_reason
    where scores.run_id = $run_id and scores.value is null
    group by scores.metric
)

select
    metric, better, mean, ci_low, ci_high, minimum, cluster, n_clusters, n_scored,
    case when n_scored > 0 or coalesce(n_empty <= n_failed, true) then n_scored + coalesce(n_failed, 0) else 0 end
        as n_applicable
from run_scores
left join unscored using (metric)
where run_id = $run_id
