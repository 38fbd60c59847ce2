-- One row per step of a run. All columns: a warehouse that was last written by an older evalhouse has fewer.
select * exclude run_id
from run_costs
where run_id = $run_id
order by step
