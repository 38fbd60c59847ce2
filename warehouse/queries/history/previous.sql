with here as (
    select series, part, started_at, run_id from run_series where run_id = $run_id
)

select run_series.run_id
from run_series
inner join here
    on here.series = run_series.series
    and (run_series.started_at, run_series.run_id) < (here.started_at, here.run_id)
where run_series.status in ('completed', 'incomplete')
-- A trial of a few samples comes after all others.
order by
    run_series.part is null or run_series.part is not distinct from here.part desc,
    run_series.started_at desc,
    run_series.run_id desc
limit 1
