-- One row per noise run of a run that came to its end.
select run_id
from runs
where kind = 'noise' and parent_run_id = $run_id and status in ('completed', 'incomplete')
