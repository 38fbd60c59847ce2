-- One row per check of the newest decision on each run of a series that did not pass, and one without a check where all
-- did; of a suite's run the decision of the suite. Newest runs first.
with newest as (
    select gate_decisions.run_id, gate_decisions.decision_id, gate_decisions.outcome as gate, runs.started_at
    from run_series
    inner join runs on runs.run_id = run_series.run_id
    inner join gate_decisions
        on gate_decisions.run_id = runs.run_id
        and gate_decisions.origin = if(runs.suite is null, 'hand', 'suite')
    where run_series.series = $series
    qualify row_number() over (partition by gate_decisions.run_id order by gate_decisions.decided_at desc) = 1
)

select
    newest.run_id,
    newest.started_at,
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
order by newest.started_at desc, newest.run_id desc, gate_checks.outcome, gate_checks.kind, gate_checks.metric
