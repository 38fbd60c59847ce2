-- One row per sample of a run that preferred one of two answers, by its id.
select * exclude (run_id)
from sample_preferences
where run_id = $run_id
order by sample_id
