-- One row: how many samples of a run were graded by tool calls, and in how many a call of the bot could not be read.
select count(*) as n_graded, count(*) filter (where contains(reason, '(unreadable)')) as n_unreadable
from grades
where run_id = $run_id and rubric = 'tool_calls' and criterion = 'any_order'
