-- The runs of a series that are not under way.
select run_id
from run_series
where series = $series and status <> 'running'
