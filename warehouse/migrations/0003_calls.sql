-- One row per request to a model, successful, failed or answered from the record.
create table llm_calls (
    call_id            varchar not null,
    run_id             varchar not null,
    sample_id          varchar,
    step               varchar not null,
    prompt             varchar,
    prompt_hash        varchar,
    judge              varchar not null,
    model              varchar,
    request_hash       varchar not null,
    request_key        ubigint not null,
    request            json /* plain file: using compression zstd */,
    reply              varchar /* plain file: using compression zstd */,
    status             varchar not null,
    error              varchar,
    attempts           integer not null,
    prompt_tokens      bigint,
    completion_tokens  bigint,
    cost_usd           double,
    latency_ms         double,
    reused_call_id     varchar,
    flow_run_id        varchar,
    task_run_id        varchar,
    started_at         timestamp not null
);

-- One row per prompt text that was ever used.
create table prompts (
    prompt_hash  varchar not null,
    prompt       varchar not null,
    version      varchar not null,
    language     varchar,
    template     varchar not null
);
