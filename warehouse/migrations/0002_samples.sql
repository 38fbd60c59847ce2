-- One row per distinct content of a sample: (sample_id, input_hash) is unique.
create table samples (
    input_hash             varchar not null,
    sample_id              varchar not null,
    question               varchar not null,
    answer                 varchar,
    ground_truth           varchar,
    contexts               varchar[],
    context_ids            varchar[],
    reference_context_ids  varchar[],
    metadata               json
);

-- One row per sample of a run. metadata is NULL where it equals that of the samples row.
create table run_samples (
    run_id      varchar not null,
    sample_id   varchar not null,
    input_hash  varchar not null,
    ordinal     bigint not null,
    metadata    json
);
