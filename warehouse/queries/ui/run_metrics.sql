-- One row per metric of a run.
select metric, any_value(better) as better, count(value) as n_scored
from scores
where run_id = $run_id
group by metric
