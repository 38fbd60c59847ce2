select run_id
from runs
where suite = $suite and status = 'running'
order by started_at desc, run_id desc
limit 1
