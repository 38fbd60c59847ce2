-- One row per event about a span of the traces of `wanted`, in the order in time; one that was received twice once. Those
-- of one moment, as clocks that tick in milliseconds write them, stay in the order in which they were received.
select span_events.trace_id, span_id, name, service, logged_at, attributes
from span_events
join wanted on wanted.trace_id = span_events.trace_id
qualify row_number() over (
    partition by span_events.trace_id, span_id, name, service, logged_at, attributes order by received_at
) = 1
order by logged_at, received_at
