-- One row per column of the metadata of a run's samples.
select distinct unnest(json_keys(coalesce(run_samples.metadata, samples.metadata))) as name
from run_samples
left join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
where run_samples.run_id = $run_id
order by name
