-- One row per metric that rests on a step.
select metric, list(step order by step) as steps
from metric_steps
group by metric
