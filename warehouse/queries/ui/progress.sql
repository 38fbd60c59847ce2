-- One row: the requests of a running run so far, and the time of its last row.
with calls as (
    select status, reused_call_id, prompt_tokens, completion_tokens, cost_usd, started_at, latency_ms
    from llm_calls
    where run_id = $run_id
    union all
    select status, reused_call_id, prompt_tokens, completion_tokens, cost_usd, started_at, latency_ms
    from waiting
    where run_id = $run_id and batch_key not in (select batch_key from batches where run_id = $run_id)
),

ended as (
    select *, started_at + to_microseconds(coalesce(1000 * latency_ms, 0)::bigint) as ended_at
    from calls
),

asked as (
    select
        count(*) filter (where status <> 'cached' and reused_call_id is null) as n_requests,
        count(*) filter (where status = 'cached') as n_reused,
        count(*) filter (where status in ('error', 'refused')) as n_failed,
        coalesce(sum(prompt_tokens) filter (where status <> 'cached'), 0)::bigint as prompt_tokens,
        coalesce(sum(completion_tokens) filter (where status <> 'cached'), 0)::bigint as completion_tokens,
        coalesce(sum(cost_usd) filter (where status <> 'cached'), 0) as priced_usd,
        count(*) filter (where status = 'ok' and cost_usd is null) as n_unpriced,
        count(*) filter (where status in ('ok', 'cached') and ended_at > $since) as n_lately,
        max(ended_at) as last_at
    from ended
)

select
    asked.* exclude (last_at),
    (select count(*) from run_samples where run_id = $run_id) as n_loaded,
    (
        select count(distinct sample_id)
        from (
            select sample_id from responses where run_id = $run_id
            union all
            select sample_id from responding where run_id = $run_id
        )
    ) as n_responses,
    greatest(last_at, (select max(written_at) from batches where run_id = $run_id)) as last_at
from asked
