-- One row per sample, of the first $n of a run: its texts as one, but for the contexts.
select concat_ws(chr(10), samples.question, samples.answer, samples.ground_truth) as text
from run_samples
inner join samples
    on run_samples.sample_id = samples.sample_id
    and run_samples.input_hash = samples.input_hash
where run_samples.run_id = $run_id and run_samples.ordinal <= $n
order by run_samples.ordinal
