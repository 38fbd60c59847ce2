-- The scores of one run, metric by metric. One row per metric that has any.
select metric, list(value) as "values"
from scores
where run_id = $run_id and value is not null
group by metric
