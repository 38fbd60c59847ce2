select distinct ours.sample_id, metric_steps.step
from scores as ours
inner join scores as theirs
    on theirs.sample_id = ours.sample_id
    and theirs.metric = ours.metric
inner join metric_steps on metric_steps.metric = ours.metric
where ours.run_id = $run_id and theirs.run_id = $previous and abs(ours.value - theirs.value) > 1e-9
