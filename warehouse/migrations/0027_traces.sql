-- Traces: what `evalhouse receive` took in of the spans of applications in use, redacted and sampled before.

-- One row per span and time that it was received; a tracer that sends one again makes a second row.
create table spans (
    trace_id     varchar not null,
    span_id      varchar not null,
    parent_id    varchar,
    name         varchar,
    service      varchar,
    session_id   varchar,
    started_at   timestamp not null,
    duration_ms  double,
    status       varchar not null,
    message      varchar,
    attributes   varchar not null,
    events       varchar,
    received_at  timestamp not null
);

comment on table spans is 'One row per span that was received: a step of an application''s work on one question.';
comment on column spans.trace_id is 'Trace, in hex; the sample_id of the sample that is made of it.';
comment on column spans.span_id is 'Span, in hex.';
comment on column spans.parent_id is 'Span around it; NULL for the outermost.';
comment on column spans.name is 'Name that the tracer gave it.';
comment on column spans.service is 'The service.name of the application.';
comment on column spans.session_id is 'Session or conversation; NULL where the tracer names none.';
comment on column spans.started_at is 'When it began, UTC; when it was received, where the tracer does not say.';
comment on column spans.duration_ms is 'Milliseconds it took; NULL where the tracer does not say.';
comment on column spans.status is 'unset, ok or error.';
comment on column spans.message is 'What the tracer says of an error; NULL where it says nothing.';
comment on column spans.attributes is 'Attributes by their full names, as JSON.';
comment on column spans.events is 'Events with their attributes, as JSON; NULL where there were none.';
comment on column spans.received_at is 'When it was received, UTC.';
