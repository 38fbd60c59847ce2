-- One row per step of the run, and of the judging again that measured its judge's noise.
select * exclude run_id
from run_costs
where run_id = $run_id
    or run_id in (select run_id from runs where parent_run_id = $run_id and kind = 'noise')
