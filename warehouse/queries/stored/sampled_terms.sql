-- One row per run of open_runs (a name for a table of run_ids) with a budget of samples, metric and sample that was judged:
-- the estimate of the mean over the whole dataset, and what the sample has in its variance. `weight` is NULL where
-- the sample has no score.
--
-- It is a regression estimator. The samples' weights, 1 / probability, are calibrated so that they sum to the number of
-- samples and, times their signals, to the sum of the signals over all (Särndal, Swensson and Wretman 1992, Model Assisted
-- Survey Sampling, section 6.5). The mean is the weighted one of the scored samples; its variance that of the weighted
-- residuals by Hájek's formula for samples of a fixed size (1964, Annals of Mathematical Statistics 35), which knows that a
-- sample of all leaves nothing open. It is the sum of the squares of `term`, and the covariance of two estimates from the
-- same samples, picked by the same probabilities, is the sum of the products of theirs.
with totals as (
    select run_id, count(*) as n_population, count(*) filter (where picked) as n_picked
    from sample_picks
    where run_id in (select run_id from open_runs)
    group by run_id
    having bool_or(not picked)  -- a budget that left nothing out changes nothing
),

signals as (
    select run_id, metric, avg(signal) as mean_signal
    from sample_signals
    where run_id in (select run_id from open_runs)
    group by run_id, metric
),

judged as (
    select
        scores.run_id,
        scores.metric,
        scores.sample_id,
        scores.value,
        sample_picks.probability,
        1 / sample_picks.probability as weight,
        coalesce(sample_signals.signal - signals.mean_signal, 0) as signal,
        coalesce(abs(scores.value - sample_signals.signal) > 1e-9, scores.value is not null) as is_surprise,
        totals.n_population,
        totals.n_picked
    from (from scores where run_id in (select run_id from totals)) as scores
    inner join sample_picks
        on sample_picks.run_id = scores.run_id
        and sample_picks.sample_id = scores.sample_id
        and sample_picks.picked
    inner join totals on totals.run_id = scores.run_id
    left join sample_signals
        on sample_signals.run_id = scores.run_id
        and sample_signals.sample_id = scores.sample_id
        and sample_signals.metric = scores.metric
    left join signals
        on signals.run_id = scores.run_id
        and signals.metric = scores.metric
),

-- Signals are counted from their mean over the dataset, so that their weighted sum is to be 0.
moments as (
    select
        *,
        sum(weight) over of_metric as w,
        sum(weight * signal) over of_metric as wx,
        sum(weight * signal * signal) over of_metric as wxx,
        count(*) over of_metric as n
    from judged
    window of_metric as (partition by run_id, metric)
),

solved as (
    select *, w * wxx - wx * wx as det, (w * wxx - wx * wx) > 1e-9 * w * w and n > 3 as has_slope
    from moments
),

calibrated as (
    select
        *,
        weight * case
            when has_slope then 1 + ((n_population - w) * wxx + wx * wx) / det
                + (-wx * w - wx * (n_population - w)) / det * signal
            else n_population / w
        end as calibrated
    from solved
),

ratios as (
    select
        *,
        sum(calibrated * value) over of_metric
            / nullif(sum(calibrated) filter (where value is not null) over of_metric, 0) as mean,
        sum(calibrated) filter (where value is not null) over of_metric as size
    from calibrated
    window of_metric as (partition by run_id, metric)
),

centred as (
    select *, coalesce(value - mean, 0) as z
    from ratios
),

fitted as (
    select
        *,
        sum(weight * z) over of_metric as wz,
        sum(weight * signal * z) over of_metric as wxz
    from centred
    window of_metric as (partition by run_id, metric)
),

residuals as (
    select
        *,
        calibrated * (
            z - case
                when has_slope then (wz * wxx - wx * wxz + (w * wxz - wx * wz) * signal) / det
                else wz / w
            end
        ) as residual
    from fitted
),

about as (
    select
        *,
        sum((1 - probability) * residual) over of_metric
            / nullif(sum(1 - probability) over of_metric, 0) as middle
    from residuals
    window of_metric as (partition by run_id, metric)
)

select
    run_id,
    metric,
    sample_id,
    n_population,
    n_picked,
    mean,
    case when value is not null then weight end as weight,
    is_surprise and abs(residual) > 1e-9 as is_surprise,
    sqrt(1 - probability) * (residual - coalesce(middle, 0)) / size * sqrt(n / nullif(greatest(n - 2, 0), 0)) as term
from about
