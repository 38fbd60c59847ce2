-- One row per noise run of a series, of the newest, and metric, in time order.
with of_series as (
    select noise.noise_run_id, run_series.run_id, run_series.started_at, runs.n_samples as n_of_run
    from (select distinct run_id, noise_run_id from noise where noise_run_id <> run_id and n_samples > 0) as noise
    inner join run_series using (run_id)
    inner join runs using (run_id)
    where run_series.series = $series
    order by run_series.started_at desc, noise.noise_run_id desc
    limit $most
)

select of_series.*, noise.metric, noise.n_samples, noise.n_changed, noise.mean_difference, noise.sd_difference
from of_series
inner join noise using (run_id, noise_run_id)
where noise.n_samples > 0
order by of_series.started_at, of_series.noise_run_id, noise.metric
