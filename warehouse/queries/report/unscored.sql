select reason, metric, count(*) as n_samples, any_value(detail) as example
from unscored
where run_id = $run_id
group by reason, metric
order by reason, metric
