-- One row per call of each sample in order, as JSON; whether it has a request without a last message to show. And one
-- row per text that requests share (`fixed`), with one of those requests.
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
),

asked as (
    select
        own.* exclude (model, request, reply, thoughts),
        coalesce(originals.model, own.model) as model,
        coalesce(originals.request, own.request) as request,
        json_extract(coalesce(originals.request, own.request), '$.messages[#-1].content') as content,
        coalesce(originals.reply, own.reply) as reply,
        coalesce(originals.thoughts, own.thoughts) as thoughts,
        originals.run_id as from_run
    from own
    left join originals on originals.call_id = own.reused_call_id
),

-- The remainder of a request without its last message is known by its hash. Where that message is in it twice, or
-- is written otherwise there, the whole request is, which shares nothing.
divided as (
    select
        asked.*,
        json_type(content) = 'VARCHAR' as is_divided,
        replace(request::varchar, content::varchar, '') as rest,
        if(strlen(rest) = strlen(request::varchar) - strlen(content::varchar), hash(rest), hash(request)) as rest_hash,
        if(is_divided, rest_hash::varchar, null) as fixed
    from asked
),

shared as (
    select fixed, arg_min(request::varchar, call_id) as request
    from divided
    where fixed is not null
    group by fixed
)

select
    sample_id,
    call_id,
    request is not null and divided.fixed is null as is_undivided,
    to_json({
        call_id: call_id,
        step: step,
        prompt: nullif(prompts.prompt, '') || coalesce(' ' || nullif(prompts.version, ''), ''),
        model: model,
        status: status,
        error: error,
        attempts: attempts,
        tokens_in: prompt_tokens,
        tokens_out: completion_tokens,
        cost_usd: cost_usd,
        latency_ms: latency_ms,
        from_run: from_run,
        fixed: divided.fixed,
        request: if(divided.fixed is null, request::varchar, content ->> '$'),
        reply: reply,
        thoughts: thoughts,
        reply_repair: reply_repair
    })::varchar as call,
    null as fixed,
    null as request,
    started_at
from divided
left join prompts on prompts.prompt_hash = divided.prompt_hash
union all by name
select fixed, request
from shared
order by sample_id, started_at, call_id, fixed
