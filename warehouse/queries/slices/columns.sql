-- One row per column of the metadata of a run's first samples, with the number of its values in these.
with members as (
    select coalesce(run_samples.metadata, samples.metadata) as metadata
    from run_samples
    left join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    where run_samples.run_id = $run_id and run_samples.ordinal <= $most
),

named as (
    select
        metadata,
        unnest(json_keys(metadata)) as name,
        unnest(list_transform(json_keys(metadata), lambda key: '/' || replace(replace(key, '~', '~0'), '/', '~1')))
            as pointer
    from members
    where json_type(metadata) = 'OBJECT'
)

select name, count(distinct json_extract_string(metadata, pointer)) as n_values
from named
group by name
order by name
