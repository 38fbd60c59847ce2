-- What a table has of the traces that go.
delete from {table}
where trace_id in (select trace_id from going_traces)
