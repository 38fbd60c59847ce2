-- One row per run with a budget of samples and metric: what judging the whole dataset would have given, as
-- `queries/stored/sampled.sql` says.
create or replace view sampled_means as
with open_runs as (
    select distinct run_id
    from sample_picks
)

select * from ($sampled);

comment on view sampled_means is 'One row per run with a budget of samples and metric: the mean that judging the whole dataset would have given, estimated from the judged part.';
comment on column sampled_means.run_id is 'Run.';
comment on column sampled_means.metric is 'Metric.';
comment on column sampled_means.n_population is 'Samples of the dataset.';
comment on column sampled_means.n_picked is 'Samples that were picked to be judged.';
comment on column sampled_means.n_judged is 'Samples that have a row in scores, with a value or without.';
comment on column sampled_means.mean is 'Estimate of the mean over all samples of the dataset that would have a score; NULL when none is scored.';
comment on column sampled_means.variance is 'Estimated variance of the estimate; NULL for fewer than three samples.';
comment on column sampled_means.n_surprises is 'Judged samples whose score differs from their signal.';
comment on column sampled_means.unseen is 'Share of the samples with the metric that may differ from their signals with a chance of 2.5 % that none was judged.';
