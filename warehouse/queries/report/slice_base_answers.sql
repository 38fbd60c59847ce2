select slice.sample_id, samples.answer
from slice
inner join run_samples
    on run_samples.run_id = $base
    and run_samples.sample_id = slice.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
