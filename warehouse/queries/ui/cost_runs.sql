-- One row per run in these days, oldest first, with what it sent by batch.
with batched as (
    select run_id, count(*) as n_batched, sum(cost_usd) as batched_usd
    from llm_calls
    where batch_id is not null and status <> 'cached' and reused_call_id is null
    group by run_id
)

select runs.run_id, runs.kind, runs.judge, runs.started_at, coalesce(run_series.series, runs.kind) as series,
       coalesce(batched.n_batched, 0) as n_batched, coalesce(batched.batched_usd, 0) as batched_usd
from runs
left join run_series on run_series.run_id = runs.run_id
left join batched on batched.run_id = runs.run_id
where $since is null or runs.started_at >= $since
order by runs.started_at, runs.run_id
