-- One row per reason why samples of a run have no preference.
select reason, count(*) as n_samples
from outcomes
where run_id = $run_id and step = 'prefer' and reason is not null
group by reason
order by reason
