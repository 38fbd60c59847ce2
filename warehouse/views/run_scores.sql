-- One row per run and metric: the mean with an interval, and how many samples stand behind it.
--
-- The interval takes two pseudo-observations at 0 and two at 1 into mean and variance, then the normal 1.96. On binary
-- values this is the "add two successes and two failures" interval of Agresti and Coull (1998), The American Statistician
-- 52(2), 119-126; on values between 0 and 1 it is the same step with the sample's own variance. Unlike the plain normal
-- interval it keeps a width when all values are equal, and covers the mean at small n.
create or replace view run_scores as
with sums as (
    select
        run_id,
        metric,
        any_value(metric_version) as metric_version,
        coalesce(any_value(better), 'high') as better,
        avg(value) as mean,
        sum(value) as total,
        sum(value * value) as total_squared,
        min(value) as lowest,
        max(value) as highest,
        count(value) as n_scored,
        count(*) - count(value) as n_unscored
    from scores
    group by run_id, metric
),

adjusted as (
    select
        *,
        (total + 2) / (n_scored + 4) as centre,
        (total_squared + 2) / (n_scored + 4) - pow((total + 2) / (n_scored + 4), 2) as variance
    from sums
),

bounded as (
    select
        *,
        1.96 * sqrt(variance / (n_scored + 4)) as half_width,
        -- The pseudo-observations stand at the ends of the scale, so a metric on another scale has no interval.
        n_scored > 0 and lowest >= 0 and highest <= 1 as has_interval
    from adjusted
)

select
    run_id,
    metric,
    mean,
    case when has_interval then greatest(centre - half_width, 0) end as ci_low,
    case when has_interval then least(centre + half_width, 1) end as ci_high,
    n_scored,
    n_unscored,
    metric_version,
    better
from bounded;

comment on view run_scores is 'One row per run and metric: the mean over its scored samples with a 95 % interval.';
comment on column run_scores.run_id is 'Run.';
comment on column run_scores.metric is 'Metric.';
comment on column run_scores.mean is 'Mean over the scored samples; NULL when none is scored.';
comment on column run_scores.ci_low is 'Lower end of the 95 % interval of the mean, at least 0; NULL when nothing is scored or values leave 0 to 1.';
comment on column run_scores.ci_high is 'Upper end of the 95 % interval of the mean, at most 1; NULL when nothing is scored or values leave 0 to 1.';
comment on column run_scores.n_scored is 'Samples with a value.';
comment on column run_scores.n_unscored is 'Samples without one; the view unscored says why.';
comment on column run_scores.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column run_scores.better is 'Which way is better: high or low.';
