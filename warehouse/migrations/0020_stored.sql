-- What is told of a run again and again, stored when it ends beside what it is computed from. The views run_scores,
-- sample_causes and run_costs read these rows where they are up to date, and compute where there are none.

-- One row per run and part of what is told of it that was stored.
create table stored_parts (
    run_id     varchar not null,
    part       varchar not null,
    rules      varchar not null,
    stored_at  timestamp not null
);

comment on table stored_parts is 'One row per run and part of what is told of it that was stored; the view stored_runs has those that are up to date.';
comment on column stored_parts.run_id is 'Run.';
comment on column stored_parts.part is 'scores, causes or costs: which of the tables stored_scores, stored_causes and stored_costs.';
comment on column stored_parts.rules is 'What they were computed by, as in stored_rules.';
comment on column stored_parts.stored_at is 'When, UTC.';

-- One row per run and metric.
create table stored_scores (
    run_id          varchar not null,
    metric          varchar not null,
    mean            double,
    ci_low          double,
    ci_high         double,
    n_scored        bigint not null,
    n_unscored      bigint not null,
    metric_version  varchar not null,
    better          varchar not null,
    minimum         double not null,
    cluster         varchar,
    n_clusters      bigint
);

comment on table stored_scores is 'One row per run and metric: rows of run_scores, which was asked at the end of the run.';
comment on column stored_scores.run_id is 'Run.';
comment on column stored_scores.metric is 'Metric.';
comment on column stored_scores.mean is 'As in run_scores.';
comment on column stored_scores.ci_low is 'As in run_scores.';
comment on column stored_scores.ci_high is 'As in run_scores.';
comment on column stored_scores.n_scored is 'As in run_scores.';
comment on column stored_scores.n_unscored is 'As in run_scores.';
comment on column stored_scores.metric_version is 'As in run_scores.';
comment on column stored_scores.better is 'As in run_scores.';
comment on column stored_scores.minimum is 'As in run_scores.';
comment on column stored_scores.cluster is 'As in run_scores.';
comment on column stored_scores.n_clusters is 'As in run_scores.';

-- One row per sample of a run.
create table stored_causes (
    run_id         varchar not null,
    sample_id      varchar not null,
    ordinal        bigint not null,
    cause          varchar not null,
    rule           varchar not null,
    reason         varchar,
    evidence       varchar,
    n_deciding     bigint,
    n_judged       bigint,
    statement_ids  varchar[],
    other_rules    varchar[]
);

comment on table stored_causes is 'One row per sample of a run: rows of sample_causes, which was asked at the end of the run.';
comment on column stored_causes.run_id is 'Run.';
comment on column stored_causes.sample_id is 'Sample.';
comment on column stored_causes.ordinal is 'As in sample_causes.';
comment on column stored_causes.cause is 'As in sample_causes.';
comment on column stored_causes.rule is 'As in sample_causes.';
comment on column stored_causes.reason is 'As in sample_causes.';
comment on column stored_causes.evidence is 'As in sample_causes.';
comment on column stored_causes.n_deciding is 'As in sample_causes.';
comment on column stored_causes.n_judged is 'As in sample_causes.';
comment on column stored_causes.statement_ids is 'As in sample_causes.';
comment on column stored_causes.other_rules is 'As in sample_causes.';

-- One row per run and step.
create table stored_costs (
    run_id             varchar not null,
    step               varchar not null,
    n_calls            bigint not null,
    n_requests         bigint not null,
    n_reused           bigint not null,
    n_failed           bigint not null,
    prompt_tokens      bigint not null,
    completion_tokens  bigint not null,
    cost_usd           double,
    n_unpriced         bigint not null,
    cached_tokens      bigint not null,
    n_estimated        bigint not null,
    priced_usd         double not null
);

comment on table stored_costs is 'One row per run and step: rows of run_costs, which was asked at the end of the run.';
comment on column stored_costs.run_id is 'Run.';
comment on column stored_costs.step is 'Step.';
comment on column stored_costs.n_calls is 'As in run_costs.';
comment on column stored_costs.n_requests is 'As in run_costs.';
comment on column stored_costs.n_reused is 'As in run_costs.';
comment on column stored_costs.n_failed is 'As in run_costs.';
comment on column stored_costs.prompt_tokens is 'As in run_costs.';
comment on column stored_costs.completion_tokens is 'As in run_costs.';
comment on column stored_costs.cost_usd is 'As in run_costs.';
comment on column stored_costs.n_unpriced is 'As in run_costs.';
comment on column stored_costs.cached_tokens is 'As in run_costs.';
comment on column stored_costs.n_estimated is 'As in run_costs.';
comment on column stored_costs.priced_usd is 'As in run_costs.';
