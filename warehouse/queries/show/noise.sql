-- One row per metric: how often and how far the judge contradicted itself, and whether to one side.
select metric, n_samples, n_changed, mean_difference, sd_difference, noise_run_id
from noise
where run_id = $run_id
order by metric
