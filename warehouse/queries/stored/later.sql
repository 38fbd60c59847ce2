-- The runs whose causes look back at one of these runs: the next ones of its series that have causes.
with placed as (
    select
        run_id,
        case when suite is not null then 'suite ' || concat_ws('/', suite, variant) else 'dataset ' || coalesce(dataset, '') end as series,
        row_number() over (partition by series order by started_at, run_id) as place
    from runs
    where kind in ('evaluation', 'collection')
)

select distinct later.run_id
from placed as here
inner join placed as later
    on later.series = here.series
    and later.place > here.place
    and later.place <= here.place + (select value from cause_thresholds where threshold = 'earlier_runs')
where here.run_id in (select unnest($run_ids::varchar[]))
    and later.run_id not in (select unnest($run_ids::varchar[]))
    and later.run_id in (select run_id from stored_causes)
order by later.run_id
