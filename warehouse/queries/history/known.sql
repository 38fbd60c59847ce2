select series, count(distinct run_id) as n_runs
from run_series
where run_id in (select run_id from stored_scores)
group by series
order by series
