-- One row per metric of a run: its mean, and the change since the run before.
select
    run_scores.* exclude (run_id, metric_version, minimum, started_at, label, tags),
    score_history.change,
    score_history.n_shared,
    score_history.previous_n_scored,
    score_history.previous_run_id,
    score_history.same_yardstick
from run_scores
left join score_history using (run_id, metric)
where run_id = $run_id
order by run_scores.metric
