-- A deterministic judge gives the same second opinion.
insert into noise by name
select
    run_id,
    run_id as noise_run_id,
    metric,
    count(value) as n_samples,
    0 as n_changed,
    0.0 as mean_difference,
    case when count(value) > 1 then 0.0 end as sd_difference
from scores
where run_id = $run_id
group by run_id, metric
order by metric
