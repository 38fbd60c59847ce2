-- The rows of the view run_costs of open_runs: a name for a table of run_ids.
with counted as (
    select
        run_id,
        step,
        count(*) filter (where status = 'cached' or reused_call_id is null) as n_calls,
        -- A reply that came together with others in one call has a separate row, and no request.
        count(*) filter (where status <> 'cached' and reused_call_id is null) as n_requests,
        count(*) filter (where status = 'cached') as n_reused,
        count(*) filter (where status in ('error', 'refused')) as n_failed,
        -- A reused reply was paid for once, by the call that first got it.
        coalesce(sum(prompt_tokens) filter (where status <> 'cached'), 0)::bigint as prompt_tokens,
        coalesce(sum(cached_tokens) filter (where status <> 'cached'), 0)::bigint as cached_tokens,
        coalesce(sum(completion_tokens) filter (where status <> 'cached'), 0)::bigint as completion_tokens,
        coalesce(sum(cost_usd) filter (where status <> 'cached'), 0) as priced_usd,
        count(*) filter (where status = 'ok' and cost_usd is null) as n_unpriced,
        -- The endpoint counts no tokens: what the call cost was estimated from its texts.
        count(*) filter (where cost_usd > 0 and coalesce(prompt_tokens, 0) = 0) as n_estimated
    from llm_calls
    where run_id in (select run_id from open_runs)
    group by run_id, step
)

select
    run_id,
    step,
    n_calls,
    n_requests,
    n_reused,
    n_failed,
    prompt_tokens,
    completion_tokens,
    -- Of the whole run: a sum over its steps would pass over a NULL and say too little, or nothing at all.
    case when sum(n_unpriced) over (partition by run_id) = 0 then priced_usd end as cost_usd,
    n_unpriced,
    cached_tokens,
    n_estimated,
    priced_usd
from counted
