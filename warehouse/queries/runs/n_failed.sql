-- How many samples of a run a judge or the target failed.
select count(distinct sample_id) as n
from (
    select sample_id from outcomes where run_id = $run_id and reason in (select unnest($reasons))
    union all
    select sample_id from responses where run_id = $run_id and status = 'failed'
)
