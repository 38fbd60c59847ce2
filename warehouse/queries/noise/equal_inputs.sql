select candidate.sample_id
from run_samples as candidate
inner join run_samples as base using (sample_id, input_hash)
where candidate.run_id = $candidate and base.run_id = $base
