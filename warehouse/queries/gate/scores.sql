-- One row per metric of a run: its mean with the interval, and the samples to which it applies: scored samples
-- and those for which something failed. A reason that is not on the list counts as a failure. Whether a metric applies
-- to a sample that failed may only show in what the bot answers, such as citations, or in the statements of a ground
-- truth that the judge could not split. So one that scored nothing, and had nothing to judge in all samples but one in
-- twenty, applies to none; but whether a question without an answer has one is known also where the bot failed.
with unscored as (
    select
        scores.metric,
        count(*) filter (where coalesce(unscored_reasons.is_failure, true)) as n_failed,
        count(*) filter (where reason in ('no_statements', 'no_citations', 'nothing_to_heed')) as n_empty,
        bool_or(reason = 'target_failed' and metric in ('answer_rate', 'refusal_rate')) as is_known
    from scores
    left join unscored_reasons on unscored_reasons.reason = scores.unscored_reason
    where scores.run_id = $run_id and scores.value is null
    group by scores.metric
)

select
    metric, better, mean, ci_low, ci_high, minimum, cluster, n_clusters, n_scored,
    case
        when n_scored = 0 and n_empty >= 19 * n_failed and not coalesce(is_known, false) then 0
        else n_scored + coalesce(n_failed, 0)
    end as n_applicable
from run_scores
left join unscored using (metric)
where run_id = $run_id
