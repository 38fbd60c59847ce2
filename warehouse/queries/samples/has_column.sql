-- One row where a sample of the run has this further column, be it null.
select 1 as is_there
from run_samples
inner join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id
    and list_contains(json_keys(coalesce(run_samples.metadata, samples.metadata)), $column)
limit 1
