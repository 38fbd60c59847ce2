select sample_id, statement_id, source, text
from wanted
inner join statements using (sample_id)
where statements.run_id = $run_id
order by sample_id, source, ordinal
