-- One row per sample of a wanted and metric, beside the base's score; change is NULL where either has none.
select
    ours.sample_id,
    ours.metric,
    ours.value,
    ours.unscored_reason,
    ours.value - theirs.value as change
from wanted
inner join scores as ours on ours.sample_id = wanted.sample_id
left join scores as theirs
    on theirs.run_id = $base
    and theirs.sample_id = ours.sample_id
    and theirs.metric = ours.metric
where ours.run_id = $run_id
