-- The runs of a run's series up to it, the newest first; a run that is of no series by itself.
with this as (
    select runs.run_id, runs.started_at, run_series.series
    from runs
    left join run_series using (run_id)
    where runs.run_id = $run_id
),

earlier as (
    select run_series.run_id, run_series.started_at
    from this
    inner join run_series using (series)
    where (run_series.started_at, run_series.run_id) < (this.started_at, this.run_id) and run_series.status <> 'running'
),

of_series as (
    select run_id, started_at from earlier
    union all
    select run_id, started_at from this
)

select run_id
from of_series
order by started_at desc, run_id desc
limit $most
