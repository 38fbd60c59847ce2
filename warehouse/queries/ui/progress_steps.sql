-- One row per step of a running run: for how many samples it has ended, or has a reply. Verdicts are written
-- many samples at a time; what the journal holds was answered since.
with calls as (
    select sample_id, step, status from llm_calls where run_id = $run_id
    union all
    select sample_id, step, status
    from waiting
    where run_id = $run_id and batch_key not in (select batch_key from batches where run_id = $run_id)
),

reached as (
    select asked.step, outcomes.sample_id, coalesce(outcomes.reason in (select unnest($failures)), false) as failed
    from outcomes
    inner join asked on asked.outcome = outcomes.step
    where outcomes.run_id = $run_id
    union all
    select asked.step, calls.sample_id, false
    from calls
    inner join asked on asked.call = calls.step
    where calls.status in ('ok', 'cached')
)

select
    asked.step,
    count(distinct reached.sample_id) as n_done,
    count(distinct reached.sample_id) filter (where reached.failed) as n_failed
from (select distinct place, step from asked) as asked
left join reached on reached.step = asked.step
group by asked.place, asked.step
order by asked.place
