select sample_id, ordinal
from run_samples
where run_id = $run_id and sample_id = $sample_id
