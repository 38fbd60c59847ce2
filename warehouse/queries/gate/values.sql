-- One row per score of some metrics in some runs.
select run_id, sample_id, metric, value, metric_version, coalesce(better, 'high') as better
from scores
where run_id in (select run_id from wanted) and metric in (select unnest($metrics::varchar[])) and value is not null
