-- One row per sample or trace that can be forgotten by its name; of some traces there is only what was logged about them.
select sample_id
from run_samples
union
select trace_id
from spans
union
select trace_id
from span_events
