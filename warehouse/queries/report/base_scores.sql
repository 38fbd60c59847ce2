select run_samples.sample_id, scores.metric, scores.value
from run_samples
inner join scores on scores.sample_id = run_samples.sample_id
where run_samples.run_id = $run_id and scores.run_id = $base
