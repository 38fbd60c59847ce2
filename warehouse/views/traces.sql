-- One row per trace that was received. A span that was received twice counts once.
create or replace view traces as
with once as (
    select * from spans
    qualify row_number() over (partition by trace_id, span_id order by received_at desc) = 1
)

select
    trace_id,
    arg_min(name, (inside, started_at)) as name,
    any_value(service order by started_at) as service,
    any_value(session_id order by started_at) as session_id,
    min(started_at) as started_at,
    (epoch_us(max(started_at + to_microseconds((1000 * coalesce(duration_ms, 0))::bigint))) - epoch_us(min(started_at)))
    / 1000 as duration_ms,
    case when bool_or(status = 'error') then 'error' else 'ok' end as status,
    count(*) as n_spans,
    max(received_at) as received_at
from (
    select
        once.*,
        exists (
            select 1 from once as outer_span
            where outer_span.trace_id = once.trace_id and outer_span.span_id = once.parent_id
        ) as inside
    from once
) as placed
group by trace_id;

comment on view traces is 'One row per trace that was received: what an application did about one question.';
comment on column traces.trace_id is 'Trace; the sample_id of the sample that is made of it.';
comment on column traces.name is 'Name of its outermost span.';
comment on column traces.service is 'The service.name of the application.';
comment on column traces.session_id is 'Session or conversation; NULL where the tracer names none.';
comment on column traces.started_at is 'When it began, UTC.';
comment on column traces.duration_ms is 'Milliseconds from its first span''s begin to its last one''s end.';
comment on column traces.status is 'error where any of its spans ended so, else ok.';
comment on column traces.n_spans is 'Spans received.';
comment on column traces.received_at is 'When the last of them was received, UTC.';
