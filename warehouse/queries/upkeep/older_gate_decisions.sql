-- What a warehouse lacks that was last written by an evalhouse which kept no decisions of gates but the outcome.
create temp view gate_decisions as
select
    run_id || '-gate' as decision_id, run_id, 'suite' as origin, gate as outcome, gate = 'passed' as is_baseline,
    coalesce(finished_at, started_at) as decided_at
from {database}.main.runs
where gate in ('passed', 'failed')
