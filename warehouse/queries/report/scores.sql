-- A sample that has no score yet keeps one row, so that every sample has its place.
select run_samples.sample_id, scores.metric, scores.value, scores.unscored_reason
from run_samples
left join scores
    on scores.run_id = run_samples.run_id
    and scores.sample_id = run_samples.sample_id
where run_samples.run_id = $run_id
order by run_samples.ordinal, run_samples.sample_id
