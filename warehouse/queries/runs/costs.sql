-- One row per step of a run.
select * exclude run_id
from run_costs
where run_id = $run_id
order by step
