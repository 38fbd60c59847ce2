-- One row per run that has responses of an application: how many it asked for, and how long they took.
create or replace view run_latencies as
with counted as (
    -- A reused response was waited for by the run that asked, and a failed one has no latency.
    select
        run_id,
        count(*) filter (where status = 'ok') as n_answered,
        count(*) filter (where status = 'failed') as n_failed,
        count(*) filter (where status = 'reused') as n_reused,
        quantile_cont(latency_ms, 0.5) filter (where status = 'ok') as latency_p50_ms,
        quantile_cont(latency_ms, 0.95) filter (where status = 'ok') as latency_p95_ms
    from responses
    group by run_id
)

select
    counted.run_id,
    series,
    runs.suite,
    runs.label,
    runs.status,
    runs.started_at,
    n_answered,
    n_failed,
    n_reused,
    latency_p50_ms,
    latency_p95_ms
from counted
left join runs on runs.run_id = counted.run_id
left join run_series on run_series.run_id = counted.run_id;

comment on view run_latencies is 'One row per run that asked an application: how long it took to answer.';
comment on column run_latencies.run_id is 'Run.';
comment on column run_latencies.series is 'Runs of one suite, or of one dataset; NULL for a run that judged nothing.';
comment on column run_latencies.suite is 'Suite; NULL for a run outside a suite.';
comment on column run_latencies.label is 'Label of the run; NULL when it has none.';
comment on column run_latencies.status is 'running, completed, incomplete, failed or cancelled.';
comment on column run_latencies.started_at is 'Start of the run, UTC.';
comment on column run_latencies.n_answered is 'Questions that were asked in this run and answered; the latencies are theirs.';
comment on column run_latencies.n_failed is 'Questions without an answer.';
comment on column run_latencies.n_reused is 'Responses taken from an earlier run; they have no latency here.';
comment on column run_latencies.latency_p50_ms is 'Median of the milliseconds to a whole response; NULL when no question was asked and answered.';
comment on column run_latencies.latency_p95_ms is '95th percentile of the milliseconds to a whole response; NULL when no question was asked and answered.';
