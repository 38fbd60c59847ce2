-- One row per run whose verdicts were reviewed, oldest first.
select run_id
from runs
where run_id in (select run_id from reviews)
order by started_at, run_id
