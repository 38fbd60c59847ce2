-- Traces that were forgotten: they belong to no run, and so stand beside `forgotten`.

-- One row per forgetting: the traces that were deleted by it, with all spans and events of theirs.
create table forgotten_traces (
    forgetting_id   varchar not null,
    rule            varchar not null,
    trace_id        varchar,
    n_traces        bigint not null,
    n_spans         bigint not null,
    n_events        bigint not null,
    n_bytes         bigint not null,
    first_began_at  timestamp not null,
    last_began_at   timestamp not null,
    forgotten_by    varchar not null,
    forgotten_at    timestamp not null
);

comment on table forgotten_traces is 'One row per forgetting of received traces: how many were deleted, with all spans and events of theirs.';
comment on column forgotten_traces.forgetting_id is 'Forgetting: one command, or one pass of a receiver''s [retention]; of a command as in `forgotten`.';
comment on column forgotten_traces.rule is 'What was asked for, as it was written.';
comment on column forgotten_traces.trace_id is 'Trace that was named; NULL where the rule is an age.';
comment on column forgotten_traces.n_traces is 'How many traces.';
comment on column forgotten_traces.n_spans is 'How many rows of `spans` they had.';
comment on column forgotten_traces.n_events is 'How many rows of `span_events` they had.';
comment on column forgotten_traces.n_bytes is 'Bytes of the attributes and events in these rows.';
comment on column forgotten_traces.first_began_at is 'When the first of them began, UTC.';
comment on column forgotten_traces.last_began_at is 'When the last of them began, UTC.';
comment on column forgotten_traces.forgotten_by is 'Who ran the command or the receiver, as the system calls them.';
comment on column forgotten_traces.forgotten_at is 'When they were deleted, UTC.';
