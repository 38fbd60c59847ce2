-- One row per noise run and its parent where this run is one of the two.
select run_id, parent_run_id
from runs
where kind = 'noise' and (run_id = $run_id or parent_run_id = $run_id)
