-- One row per sample of a run, in its order, with its texts as they were judged.
select run_samples.sample_id, samples.question, samples.answer, samples.ground_truth, samples.contexts
from run_samples
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
where run_samples.run_id = $run_id
order by run_samples.ordinal
