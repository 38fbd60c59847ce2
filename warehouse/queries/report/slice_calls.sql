-- A reply from the record has its request and its text with the call that first got it, maybe in an earlier run. Those
-- are looked for among the few calls that are named, not joined to: DuckDB would read every text on record. Numbers
-- first: the keys of all requests on record are looked through in a third of the time that all ids take.
with own as (
    select llm_calls.*
    from slice
    inner join llm_calls on llm_calls.sample_id = slice.sample_id
    where llm_calls.run_id = $run_id
),

originals as (
    select call_id, run_id, model, request, reply, thoughts
    from llm_calls
    where request_key in (select request_key from own where reused_call_id is not null)
        and call_id in (select reused_call_id from own where reused_call_id is not null)
)

select
    own.sample_id,
    own.call_id,
    own.step,
    own.status,
    own.error,
    own.attempts,
    own.prompt_tokens,
    own.completion_tokens,
    own.cost_usd,
    own.latency_ms,
    coalesce(originals.model, own.model) as model,
    coalesce(originals.request, own.request)::varchar as request,
    coalesce(originals.reply, own.reply) as reply,
    coalesce(originals.thoughts, own.thoughts) as thoughts,
    originals.run_id as original_run_id,
    prompts.prompt,
    prompts.version as prompt_version
from own
left join originals on originals.call_id = own.reused_call_id
left join prompts on prompts.prompt_hash = own.prompt_hash
order by own.sample_id, own.started_at, own.call_id
