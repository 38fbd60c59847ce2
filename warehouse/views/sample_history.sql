-- One row per run, sample and metric: one sample over all runs of its series, with the change since the run before.
create or replace view sample_history as
with placed as (
    select
        run_series.series,
        scores.sample_id,
        scores.metric,
        run_series.started_at,
        scores.run_id,
        scores.value,
        scores.unscored_reason,
        scores.metric_version,
        run_series.judge,
        run_series.embeddings,
        run_series.language,
        run_series.plan,
        run_samples.input_hash
    from scores
    inner join run_series on run_series.run_id = scores.run_id
    inner join run_samples
        on run_samples.run_id = scores.run_id
        and run_samples.sample_id = scores.sample_id
),

chained as (
    select
        *,
        lag(run_id) over before as previous_run_id,
        lag(value) over before as previous_value,
        lag(input_hash) over before as previous_input_hash,
        lag({j: judge, e: embeddings, l: language, p: plan, v: metric_version}) over before
            = {j: judge, e: embeddings, l: language, p: plan, v: metric_version} as same_yardstick
    from placed
    window before as (partition by series, sample_id, metric order by started_at, run_id)
)

select
    chained.series,
    chained.sample_id,
    chained.metric,
    chained.started_at,
    chained.run_id,
    chained.value,
    chained.unscored_reason,
    chained.metric_version,
    chained.judge,
    chained.previous_run_id,
    chained.value - chained.previous_value as change,
    chained.input_hash,
    chained.input_hash <> chained.previous_input_hash as input_changed,
    case when chained.previous_run_id is not null then chained.same_yardstick end as same_yardstick,
    samples.answer
from chained
left join samples
    on samples.sample_id = chained.sample_id
    and samples.input_hash = chained.input_hash
order by chained.series, chained.sample_id, chained.metric, chained.started_at, chained.run_id;

comment on view sample_history is 'One row per run, sample and metric, in time order within its series.';
comment on column sample_history.series is 'Runs of one suite, or, without a suite, of one dataset.';
comment on column sample_history.sample_id is 'Sample.';
comment on column sample_history.metric is 'Metric.';
comment on column sample_history.started_at is 'Start of the run, UTC.';
comment on column sample_history.run_id is 'Run.';
comment on column sample_history.value is 'Score; NULL when it is missing.';
comment on column sample_history.unscored_reason is 'Why the score is missing; NULL when it is there.';
comment on column sample_history.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column sample_history.judge is 'Judge.';
comment on column sample_history.previous_run_id is 'The run before in the series that has this sample and metric; NULL for the first.';
comment on column sample_history.change is 'Value less that of the run before; NULL for the first, or when either is missing.';
comment on column sample_history.input_hash is 'Hash of everything that was judged.';
comment on column sample_history.input_changed is 'Whether that differs from the run before: if not, the change is the judge''s or the metric''s. NULL for the first.';
comment on column sample_history.same_yardstick is 'Whether judge, embeddings, language, plan and metric version are the same as in the run before. NULL for the first.';
comment on column sample_history.answer is 'The answer in this run; NULL without one.';
