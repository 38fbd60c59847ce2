-- One row per cause of a run's failures, in the order in which causes are looked for.
select cause, n_samples, n_of, share
from run_causes
where run_id = $run_id
order by precedence
