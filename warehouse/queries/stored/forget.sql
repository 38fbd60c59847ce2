-- What is stored of a run is out of date in these parts, and with its causes those of the runs that look back at it.
with placed as (
    select
        run_id,
        case when suite is not null then 'suite ' || suite else 'dataset ' || coalesce(dataset, '') end as series,
        row_number() over (partition by series order by started_at, run_id) as place
    from runs
    where kind in ('evaluation', 'collection')
),

later as (
    select later.run_id
    from placed as here
    inner join placed as later
        on later.series = here.series
        and later.place > here.place
        and later.place <= here.place + (select value from cause_thresholds where threshold = 'earlier_runs')
    where here.run_id = $run_id
)

delete from stored_parts
where part in (select unnest($parts::varchar[]))
    and (run_id = $run_id or (part = 'causes' and run_id in (select run_id from later)))
