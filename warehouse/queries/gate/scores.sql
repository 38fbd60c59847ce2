-- One row per metric of a run: its mean with the interval, and how far its scores spread.
with spreads as (
    select metric, stddev_samp(value) as spread from scores where run_id = $run_id group by metric
)

select run_scores.* exclude (run_id, metric_version, n_unscored), spread
from run_scores
left join spreads using (metric)
where run_id = $run_id
