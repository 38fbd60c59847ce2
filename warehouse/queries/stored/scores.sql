-- The rows of the view run_scores of open_runs, a name for a table of run_ids, without what the run itself says.
--
-- The interval is that of Wilson (1927), Journal of the American Statistical Association 22, 209-212, with the effective
-- number of values n = m * (1 - m) / v, where v is the variance of their mean m (Korn and Graubard 1998, Survey Methodology
-- 24, 193-201): values that vary less than zeros and ones of the same mean say as much as more of those would. It keeps to
-- 0 and 1. Zeros and ones have v = m * (1 - m) / n and count in full. Student's quantile takes the place of the
-- normal one. Where samples share a cluster v is the jackknife's over clusters (Efron and Stein 1981, Annals of Statistics
-- 9(3)), and Student's degrees of freedom are the clusters of equal size that are worth as much (Kish 1965, Survey
-- Sampling), less one. Ratings whose least is above 0 are moved to 0 to 1 and back.
--
-- Where all values are equal, at most a share 1 - 0.025 ^ (1 / n) of further ones differ, as n equal ones show (Clopper and
-- Pearson 1934, Biometrika 26(4)), and by no more than to 0 or to 1; as much is left open where most values are at an end
-- of the scale, and fewer than six are off it, and where fewer than six of the samples that a budget picked score otherwise
-- than foretold; n is then by Kish, of their weights. A metric on another scale has Student's interval. The same in
-- Python: `tasks/comparing/intervals.py`.
with sums as (
    select
        run_id,
        metric,
        any_value(metric_version) as metric_version,
        coalesce(any_value(better), 'high') as better,
        coalesce(any_value(minimum), 0) as minimum,
        avg(value) as mean,
        var_samp(value) as spread,
        min(value) as lowest,
        max(value) as highest,
        count(value) as n_scored,
        count(*) - count(value) as n_unscored,
        count(value) filter (where value = coalesce(minimum, 0)) as n_lowest,
        count(value) filter (where value = 1) as n_highest
    from scores
    where run_id in (select run_id from open_runs)
    group by run_id, metric
),

-- Of a run that judged a part of its dataset what judging all would have given; see the view sampled_means.
estimates as (
    select
        sums.* replace (case
            when sampled_means.run_id is null then sums.mean
            when sums.lowest >= sums.minimum and sums.highest <= 1
                then least(greatest(sampled_means.mean, sums.minimum), 1)
            else sampled_means.mean
        end as mean),
        sampled_means.run_id is not null as is_sampled,
        sampled_means.variance as sampled_variance,
        sampled_means.n_surprises,
        sampled_means.unseen as sampled_unseen
    from sums
    left join ($sampled) as sampled_means
        on sampled_means.run_id = sums.run_id
        and sampled_means.metric = sums.metric
),

clusters as (
    select
        scores.run_id,
        scores.metric,
        run_samples.cluster,
        sum(scores.value) as total,
        count(*) as size
    from (from run_samples where cluster is not null and run_id in (select run_id from open_runs)) as run_samples
    inner join (from scores where value is not null and run_id in (select run_id from open_runs)) as scores
        on scores.run_id = run_samples.run_id
        and scores.sample_id = run_samples.sample_id
    group by scores.run_id, scores.metric, run_samples.cluster
),

-- The mean before the squares, so that what is equal gives no variance.
centred as (
    select
        *,
        sum(total) over of_metric / sum(size) over of_metric as mean,
        sum(size) over of_metric - size as n_others
    from clusters
    window of_metric as (partition by run_id, metric)
),

clustered as (
    select
        run_id,
        metric,
        count(*) as n_clusters,
        any_value(regexp_extract(cluster, '^[^=]*')) as cluster,
        greatest(pow(sum(size), 2) / sum(pow(size, 2)), least(count(*), 2)) as n_equal,
        sum(pow((total - size * mean) / nullif(n_others, 0), 2)) * (count(*) - 1) / count(*) as variance
    from centred
    group by run_id, metric
    having max(size) > 1
),

-- As shares of what lies between the lowest value and 1.
shares as (
    select
        sums.*,
        if(sums.is_sampled, null, clustered.n_clusters) as n_clusters,
        if(sums.is_sampled, null, clustered.cluster) as cluster,
        coalesce(if(sums.is_sampled, null, clustered.n_equal), sums.n_scored) as n,
        coalesce(sums.sampled_variance, clustered.variance, sums.spread / sums.n_scored) as variance,
        sums.n_lowest + sums.n_highest = sums.n_scored and clustered.n_clusters is null and not sums.is_sampled
            as is_binary,
        sums.lowest >= sums.minimum and sums.highest <= 1 as is_share,
        (sums.mean - sums.minimum) / (1 - sums.minimum) as share,
        coalesce(sums.sampled_variance, clustered.variance, sums.spread / sums.n_scored) / pow(1 - sums.minimum, 2)
            as share_variance
    from estimates as sums
    left join clustered
        on clustered.run_id = sums.run_id
        and clustered.metric = sums.metric
),

degrees as (
    select *, 1 / nullif(n - 1, 0) as x
    from shares
),

-- Student's 97.5 % point by a polynomial in one over the degrees of freedom (least squares over 1 and more), which is off
-- by at most 0.0002 %; degrees need not be whole.
quantiles as (
    select
        *,
        1.959964 + x * (2.372503 + x * (2.815818 + x * (2.620135 + x * (
            1.295995 + x * (1.468763 + x * (x * 0.593851 - 0.420842))
        )))) as quantile,
        n < 2 or share_variance < 1e-20 as is_level,
        not is_binary
            and coalesce(n_surprises < 6, n_scored - greatest(n_lowest, n_highest) < least(greatest(n_lowest, n_highest), 6))
            as is_few,
        coalesce(sampled_unseen, 1 - pow(0.025, 1 / nullif(n, 0))) as unseen
    from degrees
),

pulled as (
    select
        *,
        case
            when is_level then null
            when is_binary then pow(quantile, 2) / n
            else pow(quantile, 2) * share_variance / (share * (1 - share))
        end as pull
    from quantiles
),

-- greatest and least leave NULL out.
bounded as (
    select
        *,
        least(
            (share + pull / 2 - sqrt(pull * (share * (1 - share) + pull / 4))) / (1 + pull),
            case when is_level or is_few then share * (1 - unseen) end
        ) as low,
        greatest(
            (share + pull / 2 + sqrt(pull * (share * (1 - share) + pull / 4))) / (1 + pull),
            case when is_level or is_few then share + (1 - share) * unseen end
        ) as high,
        case when n > 1 and not is_level then quantile * sqrt(variance) end as half_width
    from pulled
)

select
    run_id,
    metric,
    mean,
    case
        when is_share then minimum + (1 - minimum) * greatest(least(low, share), 0)
        else mean - half_width
    end as ci_low,
    case
        when is_share then minimum + (1 - minimum) * least(greatest(high, share), 1)
        else mean + half_width
    end as ci_high,
    n_scored,
    n_unscored,
    metric_version,
    better,
    minimum,
    cluster,
    n_clusters
from bounded
