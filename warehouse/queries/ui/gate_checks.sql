-- One row per check of the newest decision on a run, of a suite's run that of the suite.
with newest as (
    select gate_decisions.decision_id, gate_decisions.outcome as gate, gate_decisions.against
    from gate_decisions
    inner join runs using (run_id)
    where run_id = $run_id and gate_decisions.origin = if(runs.suite is null, 'hand', 'suite')
    order by gate_decisions.decided_at desc
    limit 1
)

select newest.gate, gate_checks.kind, gate_checks.metric, gate_checks.limit_value as "limit", gate_checks.value,
       gate_checks.outcome, gate_checks.detail
from newest
inner join gate_checks using (decision_id)
order by gate_checks.outcome = 'passed', gate_checks.outcome, gate_checks.kind, gate_checks.metric
