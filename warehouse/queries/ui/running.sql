select run_id
from runs
where status = 'running'
order by started_at desc, run_id desc
