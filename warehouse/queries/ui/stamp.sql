-- One text that changes whenever a run has begun or ended.
select concat_ws(
    ' ', count(*), max(run_id), max(finished_at), string_agg(run_id, ',' order by run_id) filter (where status = 'running')
) as stamp
from runs
