-- One row per metric of a run: its mean, and the change since the run before. `n_without_cluster` counts the run's
-- samples that have no value in the column by which others are grouped.
select
    run_scores.* exclude (run_id, metric_version, minimum, started_at, label, tags),
    (
        select count(*)
        from run_samples
        where run_samples.run_id = $run_id and ends_with(run_samples.cluster, '=@' || run_samples.sample_id)
    ) as n_without_cluster,
    score_history.change,
    score_history.n_shared,
    score_history.previous_n_scored,
    score_history.previous_run_id,
    score_history.same_yardstick
from run_scores
left join score_history using (run_id, metric)
where run_id = $run_id
order by run_scores.metric
