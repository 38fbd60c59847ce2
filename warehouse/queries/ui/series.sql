-- All series, that of the newest run first.
select
    series,
    count(*) as n_runs,
    max_by(run_id, (started_at, run_id)) as run_id,
    max(started_at) as started_at
from run_series
group by series
order by max(started_at) desc, series
