select
    wanted.sample_id,
    run_samples.run_id = $candidate as of_candidate,
    samples.question,
    samples.answer,
    samples.ground_truth,
    samples.contexts
from wanted
inner join run_samples using (sample_id)
inner join samples using (sample_id, input_hash)
where run_samples.run_id in ($base, $candidate)
