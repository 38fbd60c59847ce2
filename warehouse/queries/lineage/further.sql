-- One row per verdict that no built-in metric names as what it rests on: the splitting of the texts, and users' own
-- rubrics. A text without statements has no verdict, but a reply.
with steps as (
    select unnest($steps::varchar[]) as step
),

replied as (
    select step, arg_max(call_id, started_at) as call_id
    from llm_calls
    where run_id = $run_id and sample_id = $sample_id and status in ('ok', 'cached')
    group by step
),

found as (
    select
        steps.step,
        outcomes.reason as step_reason,
        outcomes.detail as step_detail,
        verdicts.* exclude (run_id, sample_id, step, call_id),
        coalesce(verdicts.call_id, replied.call_id) as call_id
    from steps
    left join replied on replied.step = steps.step
    left join outcomes
        on outcomes.run_id = $run_id and outcomes.sample_id = $sample_id and outcomes.step = steps.step
    left join verdicts
        on verdicts.run_id = $run_id and verdicts.sample_id = $sample_id and verdicts.step = steps.step
),

calls as (
    select call_id, status, reply_repair, coalesce(reused_call_id, call_id) as original_call_id
    from llm_calls
    where run_id = $run_id and call_id in (select call_id from found)
),

-- Materialized: in one join DuckDB would read the requests and replies of every call on record.
originals as materialized (
    select *
    from llm_calls
    where call_id in (select original_call_id from calls)
)

select
    found.*,
    calls.status as call_status,
    calls.reply_repair,
    originals.call_id as original_call_id,
    originals.run_id as original_run_id,
    originals.started_at as original_started_at,
    originals.batch_id,
    originals.judge,
    originals.model,
    originals.request,
    originals.reply,
    originals.thoughts,
    originals.prompt_hash,
    prompts.prompt,
    prompts.version as prompt_version,
    prompts.language as prompt_language
from found
left join calls on calls.call_id = found.call_id
left join originals on originals.call_id = calls.original_call_id
left join prompts on prompts.prompt_hash = originals.prompt_hash
order by found.step, found.source, found.ordinal, found.context_rank, found.criterion
