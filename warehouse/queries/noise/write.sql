-- Scores by another version of a metric differ by more than the judge. The rounding is that of
-- `tasks/comparing/paired.py`.
insert into noise by name
with first as (select * from scores where run_id = $run_id),

again as (select * from scores where run_id = $noise_run_id),

differences as (
    select
        metric,
        case when first.metric_version = again.metric_version then again.value - first.value end as difference
    from again
    inner join first using (metric, sample_id)
)

select
    $run_id as run_id,
    $noise_run_id as noise_run_id,
    metric,
    count(difference) as n_samples,
    count(*) filter (where abs(difference) >= 1e-12) as n_changed,
    avg(difference) as mean_difference,
    stddev_samp(difference) as sd_difference
from differences
group by metric
order by metric
