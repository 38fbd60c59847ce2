-- One row when a judge has answered anything on record.
select 1 as is_asked
from llm_calls
where judge = $judge and status = 'ok'
limit 1
