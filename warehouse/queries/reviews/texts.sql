select sample_id, question, answer, ground_truth, contexts
from wanted
inner join run_samples using (sample_id)
inner join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id
