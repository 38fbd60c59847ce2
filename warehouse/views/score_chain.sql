-- One row per run and metric, in time order within the suite (or the dataset, for runs outside a suite), with the run
-- before that has the metric.
create or replace view score_chain as
with placed as (
    select
        run_series.series,
        run_series.part,
        run_scores.metric,
        run_series.started_at,
        run_scores.run_id,
        run_series.suite,
        run_series.dataset,
        run_series.status,
        run_series.judge,
        run_series.embeddings,
        run_series.language,
        run_series.plan,
        run_series.label,
        run_series.tags,
        run_scores.metric_version,
        run_scores.mean,
        run_scores.ci_low,
        run_scores.ci_high,
        run_scores.n_scored,
        run_scores.n_unscored
    from run_scores
    inner join run_series on run_series.run_id = run_scores.run_id
),

chained as (
    select
        *,
        lag(run_id) over before as previous_run_id,
        lag(n_scored) over before as previous_n_scored,
        lag({j: judge, e: embeddings, l: language, p: plan, v: metric_version}) over before
            = {j: judge, e: embeddings, l: language, p: plan, v: metric_version} as same_yardstick
    from placed
    window before as (partition by series, part, metric order by started_at, run_id)
)

select
    series,
    metric,
    started_at,
    run_id,
    suite,
    dataset,
    status,
    judge,
    embeddings,
    language,
    label,
    tags,
    metric_version,
    mean,
    ci_low,
    ci_high,
    n_scored,
    n_unscored,
    previous_run_id,
    previous_n_scored,
    case when previous_run_id is not null then same_yardstick end as same_yardstick
from chained;

comment on view score_chain is 'One row per run and metric, in time order within its series, with the run before that has the metric.';
comment on column score_chain.series is 'Runs of one suite, or, without a suite, of one dataset.';
comment on column score_chain.metric is 'Metric.';
comment on column score_chain.started_at is 'Start of the run, UTC.';
comment on column score_chain.run_id is 'Run.';
comment on column score_chain.suite is 'Suite; NULL for a run outside a suite.';
comment on column score_chain.dataset is 'Dataset; NULL when it was not named.';
comment on column score_chain.status is 'running, completed, incomplete, failed or cancelled.';
comment on column score_chain.judge is 'Judge.';
comment on column score_chain.embeddings is 'Embedding model; NULL when none was used.';
comment on column score_chain.language is 'Language of the prompts; NULL when not known.';
comment on column score_chain.label is 'Label of the run; NULL when it has none.';
comment on column score_chain.tags is 'Tags of the run.';
comment on column score_chain.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column score_chain.mean is 'Mean over the scored samples; NULL when none is scored.';
comment on column score_chain.ci_low is 'Lower end of the 95 % interval, as in run_scores.';
comment on column score_chain.ci_high is 'Upper end of the 95 % interval, as in run_scores.';
comment on column score_chain.n_scored is 'Samples with a value.';
comment on column score_chain.n_unscored is 'Samples without one.';
comment on column score_chain.previous_run_id is 'The run before in the series that has this metric, limited to as many samples; NULL for the first.';
comment on column score_chain.previous_n_scored is 'Samples with a value in the run before; NULL for the first.';
comment on column score_chain.same_yardstick is 'Whether judge, embeddings, language, plan and metric version are the same as in the run before: only then is the change due to the application. NULL for the first.';
