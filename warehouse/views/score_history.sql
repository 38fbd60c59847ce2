-- One row per run and metric, in time order within the suite (or the dataset, for runs outside a suite), with the change
-- since the run before, of the samples that both scored.
create or replace view score_history as
with shared as (
    select *
    from ($shared)
)

select
    score_chain.* exclude (same_yardstick),
    case when score_chain.previous_run_id is not null then coalesce(shared.n_shared, 0) end as n_shared,
    shared.change,
    score_chain.same_yardstick
from score_chain
left join shared
    on shared.run_id = score_chain.run_id
    and shared.metric = score_chain.metric
order by score_chain.series, score_chain.metric, score_chain.started_at, score_chain.run_id;

comment on view score_history is 'One row per run and metric, in time order within its series, with the change since the run before.';
comment on column score_history.series is 'Runs of one suite, or, without a suite, of one dataset.';
comment on column score_history.metric is 'Metric.';
comment on column score_history.started_at is 'Start of the run, UTC.';
comment on column score_history.run_id is 'Run.';
comment on column score_history.suite is 'Suite; NULL for a run outside a suite.';
comment on column score_history.dataset is 'Dataset; NULL when it was not named.';
comment on column score_history.status is 'running, completed, incomplete, failed or cancelled.';
comment on column score_history.judge is 'Judge.';
comment on column score_history.embeddings is 'Embedding model; NULL when none was used.';
comment on column score_history.language is 'Language of the prompts; NULL when not known.';
comment on column score_history.label is 'Label of the run; NULL when it has none.';
comment on column score_history.tags is 'Tags of the run.';
comment on column score_history.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column score_history.mean is 'Mean over the scored samples; NULL when none is scored.';
comment on column score_history.ci_low is 'Lower end of the 95 % interval, as in run_scores.';
comment on column score_history.ci_high is 'Upper end of the 95 % interval, as in run_scores.';
comment on column score_history.n_scored is 'Samples with a value.';
comment on column score_history.n_unscored is 'Samples without one.';
comment on column score_history.previous_run_id is 'The run before in the series that has this metric; NULL for the first.';
comment on column score_history.previous_n_scored is 'Samples with a value in the run before; NULL for the first.';
comment on column score_history.n_shared is 'Samples that this run and the one before both scored; NULL for the first.';
comment on column score_history.change is 'Mean less that of the run before, both over the samples that both scored, so that added or removed samples have no effect; NULL for the first, or without any.';
comment on column score_history.same_yardstick is 'Whether judge, embeddings, language, plan and metric version are the same as in the run before: only then is the change due to the application. NULL for the first.';
