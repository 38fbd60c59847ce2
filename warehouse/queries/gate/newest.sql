-- One row per check of the newest decision on a run, of a suite's run that of the suite; what did not pass first.
with newest as (
    select gate_decisions.decision_id, gate_decisions.outcome as gate, gate_decisions.undecided
    from gate_decisions
    inner join runs using (run_id)
    where run_id = $run_id and gate_decisions.origin = if(runs.suite is null, 'hand', 'suite')
    order by gate_decisions.decided_at desc, gate_decisions.decision_id desc
    limit 1
)

select newest.gate, newest.undecided as on_undecided, checks.kind, checks.metric, checks.limit_value as "limit",
       checks.value, checks.ci_low, checks.ci_high, checks.n, checks.beyond, checks.noise_floor, checks.outcome,
       checks.reason, checks.detail, checks.by_column, checks.by_value
from newest
inner join gate_checks as checks using (decision_id)
order by checks.outcome = 'passed', checks.outcome, checks.kind, checks.metric
