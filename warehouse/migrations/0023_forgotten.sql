-- What was forgotten: texts, requests and replies that were taken out of a warehouse, or whole runs.

-- One row per forgetting, run and table of which rows were forgotten. Nothing is overwritten but `forgotten_at`.
create table forgotten (
    forgetting_id  varchar not null,
    run_id         varchar not null,
    sample_id      varchar,
    rule           varchar not null,
    with_scores    boolean not null,
    table_name     varchar not null,
    n_rows         bigint not null,
    n_bytes        bigint not null,
    forgotten_by   varchar not null,
    decided_at     timestamp not null,
    forgotten_at   timestamp
);

comment on table forgotten is 'One row per forgetting, run and table: how many of its rows lost their texts, or went altogether.';
comment on column forgotten.forgetting_id is 'Forgetting: one command, or one night of a suite''s [retention].';
comment on column forgotten.run_id is 'Run.';
comment on column forgotten.sample_id is 'Sample that was forgotten; NULL when all of the run''s were.';
comment on column forgotten.rule is 'What was asked for, as it was written.';
comment on column forgotten.with_scores is 'Whether verdicts and scores went too, and so the rows altogether.';
comment on column forgotten.table_name is 'Table; run_samples stands for the samples themselves.';
comment on column forgotten.n_rows is 'How many rows it was.';
comment on column forgotten.n_bytes is 'Bytes of the texts in these rows.';
comment on column forgotten.forgotten_by is 'Who ran the command, as the system calls them.';
comment on column forgotten.decided_at is 'When it was decided, UTC: the day that stands where a text was.';
comment on column forgotten.forgotten_at is 'When the rows of the run were gone, UTC; NULL when that was cut short.';


-- One row per verdict that people were asked about, or have labelled, whose texts were forgotten.
create table forgotten_items (
    run_id         varchar not null,
    sample_id      varchar not null,
    step           varchar not null,
    item_id        varchar not null,
    item_hash      varchar not null,
    question_hash  varchar not null
);

comment on table forgotten_items is 'One row per reviewed verdict whose texts were forgotten: under which hash its labels are on record.';
comment on column forgotten_items.run_id is 'Run.';
comment on column forgotten_items.sample_id is 'Sample.';
comment on column forgotten_items.step is 'classify, attribute or rank.';
comment on column forgotten_items.item_id is 'Statement, or C and the rank of a context.';
comment on column forgotten_items.item_hash is 'Hash of the verdict''s content, as in reviews.';
comment on column forgotten_items.question_hash is 'Hash of the question, as in reviews.';
