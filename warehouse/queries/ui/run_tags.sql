-- One row per key of the metadata of a run's samples and value, for keys that have more than one value and not many.
with here as (
    select coalesce(run_samples.metadata, samples.metadata) as metadata
    from run_samples
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    where run_samples.run_id = $run_id
),

pairs as (
    select
        unnest(json_keys(metadata)) as key,
        unnest(list_transform(json_keys(metadata), lambda name: '/' || replace(replace(name, '~', '~0'), '/', '~1')))
            as path,
        metadata
    from here
    where json_type(metadata) = 'OBJECT'
),

counted as (
    select key, json_extract_string(metadata, path) as value, count(*) as n
    from pairs
    where json_type(metadata, path) not in ('OBJECT', 'ARRAY', 'NULL')
    group by all
)

select key, value, n
from counted
where value <> ''
qualify count(*) over (partition by key) between 2 and $most
order by key, value
