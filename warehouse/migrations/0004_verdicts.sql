-- One row per statement split from an answer or a ground truth.
create table statements (
    run_id        varchar not null,
    sample_id     varchar not null,
    statement_id  varchar not null,
    source        varchar not null,
    ordinal       integer not null,
    text          varchar not null,
    call_id       varchar
);

-- One row per statement of a sample that has both texts.
create table classifications (
    run_id        varchar not null,
    sample_id     varchar not null,
    statement_id  varchar not null,
    label         varchar not null,
    reason        varchar,
    call_id       varchar
);

-- One row per statement of a sample that has contexts.
create table attributions (
    run_id         varchar not null,
    sample_id      varchar not null,
    statement_id   varchar not null,
    supported      boolean not null,
    context_ranks  integer[],
    reason         varchar,
    call_id        varchar
);

-- One row per retrieved context of a sample that has a ground truth.
create table context_verdicts (
    run_id        varchar not null,
    sample_id     varchar not null,
    context_rank  integer not null,
    useful        boolean not null,
    reason        varchar,
    call_id       varchar
);

-- One row per sample and kind of similarity.
create table similarities (
    run_id     varchar not null,
    sample_id  varchar not null,
    kind       varchar not null,
    value      double not null
);

-- One row per sample and step that was asked for: how the step ended there. reason is NULL when it has its verdicts.
create table outcomes (
    run_id     varchar not null,
    sample_id  varchar not null,
    step       varchar not null,
    reason     varchar,
    detail     varchar
);
