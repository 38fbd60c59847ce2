-- One row per reason why samples were not judged.
select reason, count(*) as n_samples
from sample_causes
where run_id = $run_id and reason is not null
group by reason
order by n_samples desc, reason
