-- One row per run: one evaluation of one dataset by one judge with one set of prompts.
create table runs (
    run_id        varchar not null,
    suite         varchar,
    label         varchar,
    href          varchar,
    tags          varchar[],
    dataset       varchar,
    dataset_hash  varchar,
    judge         varchar not null,
    embeddings    varchar,
    language      varchar,
    metrics       varchar[],
    "trigger"     varchar not null,
    kb_name       varchar,
    kb_version    varchar,
    flow_run_id   varchar,
    status        varchar not null,
    started_at    timestamp not null,
    finished_at   timestamp,
    n_samples     bigint,
    config        json
);

-- One row per batch that was written: its key makes a repeated write harmless.
create table batches (
    batch_key   varchar not null,
    run_id      varchar,
    written_at  timestamp not null
);
