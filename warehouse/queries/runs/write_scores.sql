-- Write the scores of one metric, as its SQL left them in metric_scores.
insert into scores by name
select
    $run_id as run_id, sample_id, $metric as metric, value, unscored_reason, $version as metric_version,
    $better as better, nullif($minimum, 0) as minimum, $detail
from metric_scores
