-- One row per metric: how often and how far the judge contradicted itself.
select metric, n_samples, n_changed, sd_difference, noise_run_id
from noise
where run_id = $run_id
order by metric
