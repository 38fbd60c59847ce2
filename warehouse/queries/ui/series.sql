-- One row per series: its newest run, and the newest that has ended. That of the newest run first.
with newest as (
    select
        series,
        count(*) as n_runs,
        max_by(run_id, (started_at, run_id)) as run_id,
        max_by(run_id, (started_at, run_id)) filter (where status <> 'running') as ended_run_id
    from run_series
    group by series
)

select newest.*, runs.label, runs.status, runs.gate, runs.started_at, runs.judge, runs.config
from newest
inner join runs on runs.run_id = newest.run_id
order by runs.started_at desc, newest.series
