-- One row per step of the run, and of the judging again that measured its judge's noise. All columns: a warehouse that
-- was last written by an older evalhouse has fewer.
select * exclude run_id
from run_costs
where run_id = $run_id
    or run_id in (select run_id from runs where parent_run_id = $run_id and kind = 'noise')
