-- At most one row: how long the application took to answer what this run asked.
select latency_p95_ms as p95_ms, n_answered as n, n_failed, n_reused
from run_latencies
where run_id = $run_id
