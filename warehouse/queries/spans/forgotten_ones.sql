-- The traces that were forgotten by their id, each with when that last happened.
select trace_id, max(forgotten_at) as forgotten_at
from forgotten_traces
where trace_id is not null
group by trace_id
