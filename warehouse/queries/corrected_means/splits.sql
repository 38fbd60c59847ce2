select sample_id, source, ordinal, statement_id, text, call_id, null as reason
from statements
semi join wanted using (sample_id)
where run_id = $run_id

union all

select sample_id, replace(step, 'extract_', ''), 0, null, null, null, reason
from outcomes
semi join wanted using (sample_id)
where run_id = $run_id and step in ('extract_answer', 'extract_ground_truth') and reason is not null

order by 1, 2, 3
