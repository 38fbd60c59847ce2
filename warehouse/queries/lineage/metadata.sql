-- One row: the other columns of the sample's row in the dataset.
select coalesce(run_samples.metadata, samples.metadata)::varchar as metadata
from run_samples
join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id and run_samples.sample_id = $sample_id
