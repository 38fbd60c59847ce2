select error, count(*) as n_samples, min(sample_id) as example
from responses
where run_id = $run_id and status = 'failed'
group by error
order by n_samples desc, error
