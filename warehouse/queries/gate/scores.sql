-- One row per metric of a run: its mean with the interval, and how far its scores spread.
with spreads as (
    select metric, stddev_samp(value) as spread from scores where run_id = $run_id group by metric
)

select metric, better, mean, ci_low, ci_high, spread, n_scored
from run_scores
left join spreads using (metric)
where run_id = $run_id
