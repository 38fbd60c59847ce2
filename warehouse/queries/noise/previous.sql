with this as (select series, started_at from run_series where run_id = $run_id)

select run_series.run_id
from run_series
inner join this using (series)
where run_series.run_id <> $run_id
    and run_series.started_at <= this.started_at
    and run_series.status in ('completed', 'incomplete')
order by run_series.started_at desc, run_series.run_id desc
limit 1
