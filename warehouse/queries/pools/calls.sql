-- What the calls of a run have used. One row; what came from the record is counted and costs nothing.
select
    count(*) filter (where status <> 'cached' and reused_call_id is null) as requests,
    count(*) filter (where status = 'cached') as reused,
    count(*) filter (where status not in ('cached', 'ok')) as failed,
    coalesce(sum(prompt_tokens) filter (where status <> 'cached'), 0) as prompt_tokens,
    coalesce(sum(cached_tokens) filter (where status <> 'cached'), 0) as cached_tokens,
    coalesce(sum(completion_tokens) filter (where status <> 'cached'), 0) as completion_tokens,
    coalesce(sum(cost_usd) filter (where status <> 'cached'), 0) as spent_usd
from llm_calls
where run_id = $run_id
