-- One row per sample of a run, in order, and whether the run itself asked for the response to it and got one.
select run_samples.sample_id, coalesce(responses.status = 'ok', false) as is_asked
from run_samples
left join responses using (run_id, sample_id)
where run_samples.run_id = $run_id
order by run_samples.ordinal
