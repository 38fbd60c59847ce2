-- One row: how many replies of earlier runs a run reused, and how many of them are vectors of a factory's model that is
-- known by the factory's name alone; repeats within the run do not count.
select
    count(*) as n_earlier,
    count_if(source.step = 'similarity' and source.model = source.judge) as n_unnamed
from llm_calls
inner join llm_calls as source on source.call_id = llm_calls.reused_call_id
where llm_calls.run_id = $run_id and source.run_id <> $run_id
