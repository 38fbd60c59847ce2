-- One row per check of the newest decision on a run that was made by hand.
with newest as (
    select decision_id, outcome as gate, undecided
    from gate_decisions
    where run_id = $run_id and origin = 'hand'
    order by decided_at desc, decision_id desc
    limit 1
)

select newest.gate, newest.undecided as on_undecided, checks.kind, checks.metric, checks.limit_value as "limit",
       checks.value, checks.ci_low, checks.ci_high, checks.n, checks.beyond, checks.noise_floor, checks.outcome,
       checks.reason, checks.detail
from newest
inner join gate_checks as checks using (decision_id)
order by checks.outcome, checks.kind, checks.metric
