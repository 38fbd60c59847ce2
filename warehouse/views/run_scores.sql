-- One row per run and metric: the mean with an interval, and how many samples stand behind it. They are computed when the
-- run is scored, as `queries/stored/scores.sql` says.
create or replace view run_scores as
select
    stored_scores.*,
    runs.started_at,
    runs.label,
    runs.tags
from stored_scores
left join runs on runs.run_id = stored_scores.run_id;

comment on view run_scores is 'One row per run and metric: the mean over its scored samples with a 95 % interval.';
comment on column run_scores.run_id is 'Run.';
comment on column run_scores.metric is 'Metric.';
comment on column run_scores.mean is 'Mean over the scored samples; NULL when none is scored.';
comment on column run_scores.ci_low is 'Lower end of the 95 % interval of the mean, at least the lowest value the metric can have; NULL when nothing is scored, and when values leave 0 to 1 and do not differ.';
comment on column run_scores.ci_high is 'Upper end of the 95 % interval of the mean, at most 1 where values are; NULL as ci_low.';
comment on column run_scores.n_scored is 'Samples with a value.';
comment on column run_scores.n_unscored is 'Samples without one; the view unscored says why.';
comment on column run_scores.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column run_scores.better is 'Which way is better: high, low or neutral.';
comment on column run_scores.minimum is 'The lowest value that the metric can have.';
comment on column run_scores.cluster is 'Column of the metadata whose values group samples that are not independent; NULL where none does.';
comment on column run_scores.n_clusters is 'Groups of scored samples that the interval counts; NULL where each sample counts for itself.';
comment on column run_scores.started_at is 'Start of the run, UTC.';
comment on column run_scores.label is 'Label of the run; NULL when it has none.';
comment on column run_scores.tags is 'Tags of the run.';
