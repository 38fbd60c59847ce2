-- What a warehouse lacks that was last written by an evalhouse which kept no decisions of gates but the outcome.
create temp view gate_decisions as
select
    run_id || '-gate' as decision_id, run_id, 'suite' as origin, gate as outcome, gate = 'passed' as is_baseline,
    coalesce(finished_at, started_at) as decided_at
from {database}.main.runs
where gate in ('passed', 'failed');

create temp view gate_acceptances as
select null::varchar as run_id, null::varchar as why, null::varchar as accepted_by, null::timestamp as accepted_at
where false;
