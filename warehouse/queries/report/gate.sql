-- One row per check that did not pass in the newest decision of a run's gate, or one without a check where all passed;
-- of a suite's run that of the suite, whose limits a check by hand does not have.
with newest as (
    select gate_decisions.decision_id, gate_decisions.outcome as gate
    from gate_decisions
    inner join runs using (run_id)
    where run_id = $run_id and gate_decisions.origin = if(runs.suite is null, 'hand', 'suite')
    order by gate_decisions.decided_at desc
    limit 1
)

select
    newest.gate,
    gate_checks.kind,
    gate_checks.metric,
    gate_checks.limit_value as "limit",
    gate_checks.value,
    gate_checks.outcome,
    gate_checks.by_column,
    gate_checks.by_value
from newest
left join gate_checks
    on gate_checks.decision_id = newest.decision_id
    and gate_checks.outcome <> 'passed'
order by gate_checks.outcome, gate_checks.kind, gate_checks.metric
