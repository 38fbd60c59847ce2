select
    run_samples.sample_id,
    any_value(coalesce(run_samples.metadata, samples.metadata)::varchar order by run_id = $candidate desc) as metadata
from run_samples
left join samples using (sample_id, input_hash)
where run_samples.run_id in ($base, $candidate)
group by run_samples.sample_id
