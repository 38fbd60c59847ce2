select run_scores.* exclude (started_at, label, tags), score_history.change, score_history.previous_run_id, score_history.same_yardstick
from run_scores
left join score_history
    on score_history.run_id = run_scores.run_id
    and score_history.metric = run_scores.metric
where run_scores.run_id = $run_id
