-- One row per run of a series of whose verdicts people reviewed some, of the newest, oldest first.
select run_id
from (
    select run_id, started_at
    from run_series
    where series = $series and run_id in (select run_id from reviews)
    order by started_at desc, run_id desc
    limit $most
)
order by started_at, run_id
