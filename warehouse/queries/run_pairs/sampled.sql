-- One row per metric of two runs, one of which judged a part of its dataset: both means, and the variances that come of
-- not judging all. A run that judged all has none.
with means as (
    select
        run_scores.run_id,
        run_scores.metric,
        run_scores.mean,
        coalesce(sampled_means.variance, 0) as variance,
        coalesce(sampled_means.n_judged, run_scores.n_scored) as n,
        sampled_means.run_id is not null as is_sampled
    from run_scores
    left join sampled_means
        on sampled_means.run_id = run_scores.run_id
        and sampled_means.metric = run_scores.metric
    where run_scores.run_id in ($base, $candidate)
)

select
    metric,
    base.mean as base,
    candidate.mean as candidate,
    base.variance + candidate.variance as variance,
    least(if(base.is_sampled, base.n, candidate.n), if(candidate.is_sampled, candidate.n, base.n)) as n
from (from means where run_id = $base) as base
inner join (from means where run_id = $candidate) as candidate using (metric)
where base.mean is not null and candidate.mean is not null
