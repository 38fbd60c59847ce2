-- The series up to this run: a report of an old run does not change when later ones are added.
with here as (
    select series, started_at, run_id
    from run_series
    where run_id = $run_id
)

select
    score_history.metric,
    score_history.run_id,
    score_history.started_at,
    score_history.judge,
    score_history.mean,
    score_history.ci_low,
    score_history.ci_high,
    score_history.n_scored,
    score_history.same_yardstick,
    score_history.status
from score_history
inner join here
    on here.series = score_history.series
    and (score_history.started_at, score_history.run_id) <= (here.started_at, here.run_id)
order by score_history.metric, score_history.started_at, score_history.run_id
