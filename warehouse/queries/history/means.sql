select metric, run_id, started_at, judge, metric_version, mean, ci_low, ci_high, n_scored, n_unscored, same_yardstick
from score_history
where series = $series
order by metric, started_at, run_id
