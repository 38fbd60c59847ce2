select
    count(*) filter (where status = 'ok') as n_ok,
    count(*) filter (where status = 'failed') as n_failed,
    count(*) filter (where status = 'reused') as n_reused,
    quantile_cont(latency_ms, 0.5) filter (where status = 'ok') as latency_p50_ms,
    quantile_cont(latency_ms, 0.95) filter (where status = 'ok') as latency_p95_ms
from responses
where run_id = $run_id
