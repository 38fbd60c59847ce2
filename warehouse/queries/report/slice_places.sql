select sample_id, ordinal
from run_samples
where run_id = $run_id
order by ordinal, sample_id
limit $n offset $start
