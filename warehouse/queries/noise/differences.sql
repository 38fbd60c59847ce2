-- One row per sample, metric and noise run in which both judgements have a score by one formula.
with pairs as (
    select distinct run_id, noise_run_id
    from noise
    where noise_run_id in (select run_id from wanted) and noise_run_id <> run_id
)

select pairs.noise_run_id, again.metric, again.sample_id, again.value - first.value as difference
from pairs
inner join scores as again on again.run_id = pairs.noise_run_id
inner join scores as first
    on first.run_id = pairs.run_id
    and first.metric = again.metric
    and first.sample_id = again.sample_id
    and first.metric_version = again.metric_version
where again.value is not null and first.value is not null
order by all
