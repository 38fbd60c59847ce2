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
-- a guess. `unseen` is the share of the dataset that may have moved with a chance of 2.5 % that none of it is among the
-- judged.
with open_runs as (
    select unnest([$base, $candidate]) as run_id
),

terms as (
    from ($sampled_terms)
),

picks as (
    select
        coalesce(bool_and(is_alike), false) as is_paired,
        coalesce(least(
            count(*) filter (where probability < 1),
            ln(0.025) * count(*) filter (where probability < 1) / sum(ln(nullif(1 - probability, 0)))
        ) / count(*), 0) as unseen
    from ($sampled_picks)
),

moves as (
    select 'both' as side, metric, coalesce(candidate.term, 0) - coalesce(base.term, 0) as term
    from (from terms where run_id = $base) as base
    full join (from terms where run_id = $candidate) as candidate using (metric, sample_id)
),

variances as (
    select side, metric, sum(term * term) as variance, sum(pow(term, 4)) - pow(sum(term * term), 2) / count(*) as spread
    from (from moves union all select run_id, metric, term from terms)
    group by side, metric
),

means as (
    select
        run_scores.run_id,
        run_scores.metric,
        run_scores.mean,
        if(variances.side is null, 0, variances.variance) as variance,
        coalesce(variances.spread, 0) as spread
    from run_scores
    left join variances
        on variances.side = run_scores.run_id
        and variances.metric = run_scores.metric
    where run_scores.run_id in ($base, $candidate)
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
    picks.unseen
from (from means where run_id = $base) as base
inner join (from means where run_id = $candidate) as candidate using (metric)
left join (from variances where side = 'both') as differences using (metric)
cross join picks
where base.mean is not null and candidate.mean is not null
