-- One row, also for a run without responses.
select
    coalesce(any_value(n_answered), 0) as n_ok,
    coalesce(any_value(n_failed), 0) as n_failed,
    coalesce(any_value(n_reused), 0) as n_reused,
    any_value(latency_p50_ms) as latency_p50_ms,
    any_value(latency_p95_ms) as latency_p95_ms
from run_latencies
where run_id = $run_id
