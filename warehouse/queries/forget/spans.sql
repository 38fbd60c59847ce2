-- The spans that go: those of traces that began before $before, or those of one trace; and their bytes.
select count(*), coalesce(sum(strlen(attributes) + coalesce(strlen(events), 0)), 0)::bigint
from spans
where trace_id in (
    select trace_id from spans group by trace_id having min(started_at) < $before or trace_id = $trace_id
)
