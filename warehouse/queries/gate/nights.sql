-- One row per run of the same series that was begun before this one and may count as good: its gate passed, or a person
-- accepted it. In the order in which they came to count: a run when it was begun, an accepted one when it was accepted.
with of_series as (
    select runs.run_id, runs.suite, runs.status, runs.started_at
    from runs
    inner join run_series using (run_id)
    where run_series.series = (select series from run_series where run_id = $run_id)
        and (runs.started_at, runs.run_id) < (select (started_at, run_id) from runs where run_id = $run_id)
),

decided as (
    select
        gate_decisions.run_id,
        arg_max(gate_decisions.outcome, gate_decisions.decided_at) as outcome,
        arg_max(gate_decisions.is_baseline, gate_decisions.decided_at) as is_baseline
    from gate_decisions
    inner join of_series using (run_id)
    -- A check by hand has separate limits: it does not decide on the suite's.
    where gate_decisions.origin = if(of_series.suite is null, 'hand', 'suite')
    group by gate_decisions.run_id
),

accepted as (
    select
        run_id,
        max(accepted_at) as accepted_at,
        arg_max(accepted_by, accepted_at) as accepted_by,
        arg_max(why, accepted_at) as why
    from gate_acceptances
    group by run_id
)

select
    run_id,
    accepted_at is not null or coalesce(is_baseline, false) as is_baseline,
    accepted_at,
    accepted_by,
    why
from of_series
left join decided using (run_id)
left join accepted using (run_id)
where accepted_at is not null or (status = 'completed' and outcome = 'passed')
order by coalesce(accepted_at, started_at), run_id
