-- One row per sample of a run that has a value in a column of the metadata: the value as a text.
with members as (
    select run_samples.sample_id, run_samples.ordinal, coalesce(run_samples.metadata, samples.metadata) as metadata
    from run_samples
    left join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    where run_samples.run_id = $run_id
)

select sample_id, json_extract_string(metadata, $pointer) as slice
from members
where json_type(metadata, $pointer) <> 'NULL'
order by ordinal
