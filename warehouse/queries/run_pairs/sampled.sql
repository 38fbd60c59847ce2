-- One row per metric of two runs, one of which judged a part of its dataset: both means, and the variance of their
-- difference of not judging all. A run that judged all has none.
--
-- A sample that both runs judged was as probable to be in both as in one where they picked the same samples by the same
-- probabilities (`is_paired`). Then the difference rests on what moved in these: its variance is that of the differences of
-- their terms, in which the covariance of both estimates is contained. Elsewhere one draw knew nothing of the other: a
-- sample was in both as probable as the product says, and the variances add up. (Earlier versions drew by the seed alone:
-- two such runs share more samples than that, and as a sample mostly scores alike in both, the sum is on the safe side.)
--
-- `spread` is the variance of that variance, from which its degrees of freedom follow: few samples that moved far make it
-- a guess. `unseen` is the share of the samples with the metric that may have moved with a chance of 2.5 % that both
-- runs scored none of them.
with open_runs as (
    select unnest([$base, $candidate]) as run_id
),

$common_tables,

terms as (
    from ($sampled_terms)
),

picks as (
    select coalesce(bool_and(is_alike), false) as is_paired
    from ($sampled_picks)
),

moves as (
    select
        'both' as side,
        metric,
        coalesce(candidate.term, 0) - coalesce(base.term, 0) as term,
        base.weight + candidate.weight as weight  -- NULL unless both have a score
    from (from terms where run_id = $base) as base
    full join (from terms where run_id = $candidate) as candidate using (metric, sample_id)
),

variances as (
    select
        side,
        metric,
        sum(term * term) as variance,
        sum(pow(term, 4)) - pow(sum(term * term), 2) / count(*) as spread,
        $unseen_share as unseen
    from (from moves union all select run_id, metric, term, weight from terms)
    group by side, metric
),

estimates as (
    select run_id, metric, any_value(mean) as mean, count(*) filter (where is_surprise) as n_surprises
    from terms
    group by run_id, metric
),

-- A mean of shares is one.
means as (
    select
        scores.run_id,
        scores.metric,
        case
            when any_value(estimates.run_id) is null then avg(scores.value)
            when min(scores.value) >= 0 and max(scores.value) <= 1
                then least(greatest(any_value(estimates.mean), 0), 1)
            else any_value(estimates.mean)
        end as mean,
        if(any_value(variances.side) is null, 0, any_value(variances.variance)) as variance,
        coalesce(any_value(variances.spread), 0) as spread,
        any_value(estimates.run_id) is not null as is_estimate,
        case when any_value(estimates.n_surprises) < 6 then any_value(variances.unseen) else 0 end as unforeseen
    from scores
    left join estimates
        on estimates.run_id = scores.run_id
        and estimates.metric = scores.metric
    left join variances
        on variances.side = scores.run_id
        and variances.metric = scores.metric
    group by scores.run_id, scores.metric
)

select
    metric,
    base.mean as base,
    candidate.mean as candidate,
    case
        when base.variance is null or candidate.variance is null then null
        when picks.is_paired then differences.variance
        else base.variance + candidate.variance
    end as variance,
    if(picks.is_paired, differences.spread, base.spread + candidate.spread) as spread,
    picks.is_paired,
    differences.unseen,
    coalesce(base.unforeseen, 0) + coalesce(candidate.unforeseen, 0) as unforeseen
from (from means where run_id = $base) as base
inner join (from means where run_id = $candidate) as candidate using (metric)
left join (from variances where side = 'both') as differences using (metric)
cross join picks
where base.mean is not null and candidate.mean is not null and (base.is_estimate or candidate.is_estimate)
