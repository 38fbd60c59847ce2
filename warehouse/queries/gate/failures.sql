-- The checks by which a run did not pass the gate of its suite, by the latest decision: failed ones, and ones
-- left undecided where that fails the gate.
with decision as (
    select decision_id, undecided
    from gate_decisions
    where run_id = $run_id and origin = 'suite' and outcome = 'failed'
    order by decided_at desc, decision_id desc
    limit 1
)

select
    checks.kind, checks.metric, checks.limit_value as "limit", checks.value, checks.ci_low, checks.ci_high,
    checks.noise_floor, checks.beyond, checks.outcome, checks.detail, checks.by_column, checks.by_value
from gate_checks as checks
join decision using (decision_id)
where checks.outcome = 'failed' or (checks.outcome = 'undecided' and decision.undecided = 'fail')
order by checks.outcome, checks.kind, checks.metric
