-- One row per sample of a run that has a cause.
select sample_id, cause
from sample_causes
where run_id = $run_id and cause is not null
