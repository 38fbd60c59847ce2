-- One row per metric and run of a series in time order, the newest of them: the score of one sample.
with here as (
    select series from run_series where run_id = $run_id
),

nights as (
    select run_series.*
    from run_series
    inner join here on here.series = run_series.series
    order by run_series.started_at desc, run_series.run_id desc
    limit $n_runs
)

select
    scores.metric,
    nights.run_id,
    nights.started_at,
    nights.judge,
    nights.status,
    scores.value as mean,
    null::double as ci_low,
    null::double as ci_high,
    (scores.value is not null)::integer as n_scored,
    lag({j: judge, e: embeddings, l: language, p: plan, v: metric_version}) over before
        = {j: judge, e: embeddings, l: language, p: plan, v: metric_version} as same_yardstick
from nights
inner join scores on scores.run_id = nights.run_id
where scores.sample_id = $sample_id and list_contains($metrics::varchar[], scores.metric)
window before as (partition by scores.metric order by nights.started_at, nights.run_id)
order by scores.metric, nights.started_at, nights.run_id
