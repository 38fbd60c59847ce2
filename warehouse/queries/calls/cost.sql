-- One row: the dollars of a run's calls as far as they have a price; a reused reply was paid for by another call.
select coalesce(sum(cost_usd), 0) as cost_usd
from llm_calls
where run_id = $run_id and status <> 'cached'
