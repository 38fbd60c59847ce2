with versions as (
    select run_id, metric, any_value(metric_version) as metric_version
    from scores
    where run_id in (select run_id from wanted)
    group by run_id, metric
)

select noise.noise_run_id, noise.metric, versions.metric_version, n_samples, n_changed, mean_difference, sd_difference
from noise
inner join versions on versions.run_id = noise.noise_run_id and versions.metric = noise.metric
where noise.noise_run_id in (select run_id from wanted) and noise.n_samples > 0
