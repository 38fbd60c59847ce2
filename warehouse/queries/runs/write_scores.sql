-- Write the scores of a run, as the SQL of its metrics left them in metric_scores.
insert into scores by name
select
    $run_id as run_id, sample_id, metric, value, unscored_reason, metric_version, better,
    nullif(minimum, 0) as minimum
from metric_scores
join scored_metrics using (metric)
