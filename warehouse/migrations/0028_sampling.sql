-- Of a dataset of which a part is judged: how probable each sample was, and what was known of it before.

-- One row per run with a budget of samples and sample of its dataset.
create table sample_picks (
    run_id       varchar not null,
    sample_id    varchar not null,
    ordinal      bigint not null,
    probability  double not null,
    picked       boolean not null
);

comment on table sample_picks is 'One row per run with a budget of samples and sample of its dataset, judged or not.';
comment on column sample_picks.run_id is 'Run.';
comment on column sample_picks.sample_id is 'Sample; only those that were picked are in run_samples.';
comment on column sample_picks.ordinal is 'Place in the dataset, from 1.';
comment on column sample_picks.probability is 'How probable it was that the sample be judged.';
comment on column sample_picks.picked is 'Whether it is judged.';

-- One row per run with a budget, sample of its dataset and metric.
create table sample_signals (
    run_id     varchar not null,
    sample_id  varchar not null,
    metric     varchar not null,
    signal     double not null,
    origin     varchar not null
);

comment on table sample_signals is 'One row per run with a budget of samples, sample of its dataset and metric: what was known before anything was judged.';
comment on column sample_signals.run_id is 'Run.';
comment on column sample_signals.sample_id is 'Sample.';
comment on column sample_signals.metric is 'Metric.';
comment on column sample_signals.signal is 'What the score was expected to be, 0 to 1.';
comment on column sample_signals.origin is 'Run whose score it is; lexical where it was made of the sample''s texts by the lexical rules.';
