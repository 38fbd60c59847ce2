-- Say of each sample of a run which group it is of: by the first of the columns that has at least $least values, some of
-- which samples share. A sample without a value is a separate group.
update run_samples
set cluster = grouped.cluster
from (
    with members as (
        select run_samples.sample_id, coalesce(run_samples.metadata, samples.metadata) as metadata
        from run_samples
        left join samples
            on samples.sample_id = run_samples.sample_id
            and samples.input_hash = run_samples.input_hash
        where run_samples.run_id = $run_id
    ),

    -- In a JSON pointer ~ and / are written ~0 and ~1.
    named as (
        select
            generate_subscripts($columns, 1) as place,
            unnest($columns) as name,
            '/' || replace(replace(unnest($columns), '~', '~0'), '/', '~1') as pointer
    ),

    valued as (
        select members.sample_id, named.place, named.name, json_extract(members.metadata, named.pointer)::varchar as value
        from members
        cross join named
        where json_type(members.metadata, named.pointer) <> 'NULL'
    ),

    chosen as (
        select name
        from valued
        group by place, name
        having count(distinct value) between $least and count(*) - 1
        order by place
        limit 1
    )

    -- Values are JSON, none of which begins with @.
    select members.sample_id, chosen.name || '=' || coalesce(valued.value, '@' || members.sample_id) as cluster
    from members
    cross join chosen
    left join valued on valued.sample_id = members.sample_id and valued.name = chosen.name
) as grouped
where run_samples.run_id = $run_id and run_samples.sample_id = grouped.sample_id
