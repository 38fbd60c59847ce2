select run_samples.sample_id
from run_samples
inner join scores using (run_id, sample_id)
where run_samples.run_id = $run_id and scores.value is not null
group by run_samples.sample_id
order by min(run_samples.ordinal)
