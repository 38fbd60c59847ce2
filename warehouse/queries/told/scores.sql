-- The rows of run_scores, without what the run itself says, of those wanted runs whose means are stored.
select *
from stored_scores
where run_id in (select run_id from wanted) and run_id in (select run_id from stored_runs where part = 'scores')
