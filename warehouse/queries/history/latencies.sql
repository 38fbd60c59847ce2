select run_id, latency_p50_ms, latency_p95_ms
from run_latencies
where run_id in (select run_id from run_series where series = $series)
