-- One row per metric of two runs, one of which judged a part of its dataset: both means. The variance of their difference
-- is that of its parts, which are in `sampled_terms.sql`.
--
-- A sample that both runs judged was as probable to be in both as in one where they picked the same samples by the same
-- probabilities (`is_paired`). Then the difference rests on what moved in these: what is open of it is the difference of
-- their terms, in which the covariance of both estimates is contained. Elsewhere one draw knew nothing of the other: a
-- sample was in both as probable as the product says, and the variances add up. (Earlier versions drew by the seed alone:
-- two such runs share more samples than that, and as a sample mostly scores alike in both, the sum is on the safe side.)
--
-- `unseen` is the share of the samples with the metric that may have moved with a chance of 2.5 % that both runs scored
-- none of them.
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
    select 'both' as side, metric, base.weight + candidate.weight as weight  -- NULL unless both have a score
    from (from terms where run_id = $base) as base
    full join (from terms where run_id = $candidate) as candidate using (metric, sample_id)
),

unseen_shares as (
    select side, metric, $unseen_share as unseen
    from (from moves union all select run_id, metric, weight from terms)
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
        any_value(estimates.run_id) is not null as is_estimate,
        case when any_value(estimates.n_surprises) < 6 then any_value(unseen_shares.unseen) else 0 end as unforeseen
    from scores
    left join estimates
        on estimates.run_id = scores.run_id
        and estimates.metric = scores.metric
    left join unseen_shares
        on unseen_shares.side = scores.run_id
        and unseen_shares.metric = scores.metric
    group by scores.run_id, scores.metric
)

select
    metric,
    base.mean as base,
    candidate.mean as candidate,
    picks.is_paired,
    in_both.unseen,
    coalesce(base.unforeseen, 0) + coalesce(candidate.unforeseen, 0) as unforeseen
from (from means where run_id = $base) as base
inner join (from means where run_id = $candidate) as candidate using (metric)
left join (from unseen_shares where side = 'both') as in_both using (metric)
cross join picks
where base.mean is not null and candidate.mean is not null and (base.is_estimate or candidate.is_estimate)
