-- What applications log about their spans: events of GenAI, in which content stands that is kept out of spans.

-- One row per event and time that it was received; an exporter that sends one again makes a second row.
create table span_events (
    trace_id     varchar not null,
    span_id      varchar not null,
    name         varchar not null,
    service      varchar,
    logged_at    timestamp not null,
    attributes   varchar not null,
    received_at  timestamp not null
);

comment on table span_events is 'One row per event that was received about a span, in a log record of its own: what was said to a model and by it.';
comment on column span_events.trace_id is 'Trace, in hex.';
comment on column span_events.span_id is 'Span that it is about, in hex; it may come before that one.';
comment on column span_events.name is 'Name, such as gen_ai.choice.';
comment on column span_events.service is 'The service.name of the application.';
comment on column span_events.logged_at is 'When it was logged, UTC; when it was received, where the application does not say.';
comment on column span_events.attributes is 'Attributes by their full names, and the members of its body, as JSON.';
comment on column span_events.received_at is 'When it was received, UTC.';
