-- The rows of score_chain of some runs, in time order within a metric of a series.
select *
from score_chain
where run_id in (select run_id from wanted)
order by series, metric, started_at, run_id
