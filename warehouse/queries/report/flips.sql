-- One row per step of a run whose verdicts were voted on.
select * exclude run_id
from vote_flips
where run_id = $run_id
order by step
