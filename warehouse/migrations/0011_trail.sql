-- Why a run happened and what it was made from, the application's responses, and the judge's measured noise.
alter table runs add column kind varchar;
alter table runs add column parent_run_id varchar;
alter table runs add column suite_hash varchar;
alter table runs add column code_version varchar;
alter table runs add column kb_changed varchar[];
alter table runs add column problem varchar;
alter table runs add column gate varchar;

update runs set kind = 'evaluation';

comment on column runs.kind is 'evaluation; collection, which asked the application and judged nothing; noise, which judged unchanged samples of its parent again; prompts, which asked about reviewed verdicts of its parent in other words; benchmark, which asked about labelled data.';
comment on column runs.parent_run_id is 'Run whose responses are judged here, or judged again to measure noise; NULL for a run of its own.';
comment on column runs.suite_hash is 'Hash of the suite''s file; NULL outside a suite.';
comment on column runs.code_version is 'Version of evalhouse, with a hash of its source; NULL for runs older than this column.';
comment on column runs.kb_changed is 'Ids of documents that were announced as changed; NULL when none were.';
comment on column runs.problem is 'Why the run did not complete; NULL when it did, or is under way.';
comment on column runs.gate is 'How the suite''s gate ended: passed or failed; NULL when there is none.';

-- One row per sample that the application under test was asked about.
create table responses (
    run_id         varchar not null,
    sample_id      varchar not null,
    answer         varchar,
    contexts       varchar[],
    context_ids    varchar[],
    latency_ms     double,
    status         varchar not null,
    error          varchar,
    attempts       integer,
    reused_run_id  varchar,
    asked_at       timestamp
);

comment on table responses is 'One row per sample of a run that the application under test was asked about.';
comment on column responses.run_id is 'Run.';
comment on column responses.sample_id is 'Sample.';
comment on column responses.answer is 'What the application answered; NULL when it gave no answer.';
comment on column responses.contexts is 'The contexts it retrieved, in its order; NULL when it told none.';
comment on column responses.context_ids is 'Their ids; NULL when it told none.';
comment on column responses.latency_ms is 'Milliseconds from the request to the whole response; NULL when it was not asked.';
comment on column responses.status is 'ok, failed, or reused: not asked, because the response of an earlier run was taken.';
comment on column responses.error is 'Why it failed; NULL when it did not.';
comment on column responses.attempts is 'Times it was asked in this run.';
comment on column responses.reused_run_id is 'Run whose response was taken; NULL when it was asked.';
comment on column responses.asked_at is 'When it was asked, UTC.';

-- One row per announced update of a knowledge base that a run has answered.
create table kb_updates (
    event_id     varchar not null,
    kb_name      varchar not null,
    kb_version   varchar,
    kb_changed   varchar[],
    occurred_at  timestamp not null,
    run_id       varchar not null
);

comment on table kb_updates is 'One row per announced update of a knowledge base and the run that answered it.';
comment on column kb_updates.event_id is 'Id of the event in Prefect.';
comment on column kb_updates.kb_name is 'Knowledge base.';
comment on column kb_updates.kb_version is 'Version it was updated to; NULL when it was not told.';
comment on column kb_updates.kb_changed is 'Ids of changed documents; NULL when they were not told.';
comment on column kb_updates.occurred_at is 'When it was announced, UTC.';
comment on column kb_updates.run_id is 'Run that answered it.';

-- One row per run and metric: how far the judge is from itself on unchanged samples.
create table noise (
    run_id           varchar not null,
    noise_run_id     varchar not null,
    metric           varchar not null,
    n_samples        bigint not null,
    n_changed        bigint not null,
    mean_difference  double,
    sd_difference    double
);

comment on table noise is 'One row per run and metric: how far the judge is from itself when it judges unchanged samples again.';
comment on column noise.run_id is 'Run whose samples were judged again.';
comment on column noise.noise_run_id is 'Run that judged them again, with its own verdicts and calls.';
comment on column noise.metric is 'Metric.';
comment on column noise.n_samples is 'Samples that both scored.';
comment on column noise.n_changed is 'Those of them with another score.';
comment on column noise.mean_difference is 'Mean of second score less first; NULL without a sample.';
comment on column noise.sd_difference is 'Standard deviation of that difference over the samples; NULL with fewer than two.';
