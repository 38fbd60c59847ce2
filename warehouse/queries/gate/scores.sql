-- One row per metric of a run: its mean with the interval.
select metric, better, mean, ci_low, ci_high, minimum, cluster, n_clusters, n_scored
from run_scores
where run_id = $run_id
