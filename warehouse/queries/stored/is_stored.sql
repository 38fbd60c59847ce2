select 1 as is_stored
from stored_runs
where run_id = $run_id and part = $part
