-- One row per cause of a run, in the order of the causes' first rules.
select cause, n_samples, n_of, share, ci_low, ci_high
from run_causes
where run_id = $run_id
order by precedence
