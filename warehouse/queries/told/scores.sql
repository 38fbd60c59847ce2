-- The rows of run_scores of those wanted runs whose means are stored.
select stored_scores.*, runs.started_at, runs.label, runs.tags
from stored_scores
inner join runs on runs.run_id = stored_scores.run_id
where stored_scores.run_id in (select run_id from wanted)
    and stored_scores.run_id in (select run_id from stored_runs where part = 'scores')
