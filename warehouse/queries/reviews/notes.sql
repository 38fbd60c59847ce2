-- The newest note on each reviewed verdict of these runs and step.
select run_id, sample_id, statement_id, context_rank, arg_max(note, reviewed_at) as note
from reviews
where run_id in (select run_id from wanted) and step = $step and note is not null and trim(note) <> ''
group by run_id, sample_id, statement_id, context_rank
