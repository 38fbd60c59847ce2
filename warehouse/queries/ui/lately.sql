-- The newest runs of each series.
select run_id
from run_series
qualify row_number() over (partition by series order by started_at desc, run_id desc) <= $n_runs
