-- One row per event about a span of the traces of `wanted`; one that was received twice once.
select distinct trace_id, span_id, name, service, logged_at, attributes
from span_events
join wanted using (trace_id)
order by trace_id, span_id, logged_at
