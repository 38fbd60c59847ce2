-- One row per sample, the worst by a metric first.
select scores.sample_id, scores.value, samples.question, samples.answer, samples.conversation::varchar as conversation
from scores
join run_samples using (run_id, sample_id)
join samples using (sample_id, input_hash)
where scores.run_id = $run_id and scores.metric = $metric and scores.value is not null
order by if(scores.better = 'low', -scores.value, scores.value), run_samples.ordinal
limit $worst
