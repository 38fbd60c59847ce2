-- Gates' decisions as a warehouse knows them whose evalhouse kept no more of them than the outcome.
select
    run_id || '-gate' as decision_id, run_id, 'suite' as origin, gate as outcome, gate = 'passed' as is_baseline,
    null::varchar as undecided, null::varchar as against, null::varchar[] as base_run_ids, null::varchar as decided_by,
    coalesce(finished_at, started_at) as decided_at
from runs
where gate in ('passed', 'failed')
