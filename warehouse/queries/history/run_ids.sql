-- The runs of a series, or of a run's own, up to that run: a report of an old run does not change when later ones come.
select run_series.run_id
from run_series
left join run_series as here on here.run_id = $run_id
where run_series.series = coalesce($series, here.series)
    and (here.run_id is null or (run_series.started_at, run_series.run_id) <= (here.started_at, here.run_id))
