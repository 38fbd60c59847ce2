-- One row per span of the traces of `wanted`, grouped by trace; a span that was received twice once.
select spans.*, wanted.is_earlier
from spans
join wanted using (trace_id)
qualify row_number() over (partition by trace_id, span_id order by received_at desc) = 1
order by wanted.ordinal, started_at, span_id
