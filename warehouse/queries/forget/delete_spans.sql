-- The spans of traces that began before $before, or those of one trace, go.
delete from spans
where trace_id in (
    select trace_id from spans group by trace_id having min(started_at) < $before or trace_id = $trace_id
)
