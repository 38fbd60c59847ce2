select count(distinct again.sample_id) as n
from runs
inner join scores as again on again.run_id = runs.run_id
inner join scores as first
    on first.run_id = runs.parent_run_id
    and first.metric = again.metric
    and first.sample_id = again.sample_id
where runs.run_id = $run_id and abs(first.value - again.value) >= 1e-12
