-- How many samples of the run before this run does not have.
select count(*) as n_samples
from run_samples
where run_id = $previous_run_id
    and sample_id not in (select sample_id from run_samples where run_id = $run_id)
