-- Measured up to the run, newest first, and only then what was measured later.
with this as (select run_id, series, started_at from run_series where run_id = $run_id)

select noise.noise_run_id
from noise
inner join run_series on run_series.run_id = noise.run_id
inner join this on this.series = run_series.series
where noise.noise_run_id <> noise.run_id and noise.n_samples > 0
group by noise.noise_run_id, run_series.started_at, this.started_at
order by
    run_series.started_at > this.started_at,
    abs(epoch(run_series.started_at) - epoch(this.started_at)),
    noise.noise_run_id
