-- One row per trace to delete: traces that began before $before, or one; with its start and its numbers of rows.
create or replace temp table going_traces as
with received as (
    select trace_id, started_at as began_at, 1 as n_spans, strlen(attributes) + coalesce(strlen(events), 0) as n_bytes
    from spans
    union all
    select trace_id, logged_at, 0, strlen(attributes)
    from span_events
)

select
    trace_id,
    min(began_at) as began_at,
    sum(n_spans) as n_spans,
    count(*) - sum(n_spans) as n_events,
    sum(n_bytes) as n_bytes
from received
group by trace_id
having min(began_at) < $before or trace_id = $trace_id
