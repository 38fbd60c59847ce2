-- One row: how many replies of earlier runs a run reused; repeats within the run do not count.
select count(*) as n_earlier
from llm_calls
inner join llm_calls as source on source.call_id = llm_calls.reused_call_id
where llm_calls.run_id = $run_id and source.run_id <> $run_id
