-- One row per reason for missing scores, the most frequent first.
select
    reason,
    count(distinct sample_id) as n_samples,
    list(distinct metric order by metric) as metrics,
    any_value(detail) as example
from unscored
where run_id = $run_id
group by reason
order by n_samples desc, reason
