-- The means of a run, in the order of its metrics; then metrics that were scored later.
select metric, mean, ci_low, ci_high, n_scored, n_unscored, better
from run_scores
where run_id = $run_id
order by list_position($metrics, metric), metric
