-- One input and one yardstick: what then moves is the judge. From tables and not from `sample_history`, whose windows
-- are over all that was ever scored.
with lately as (
    select run_id, judge, embeddings, language, plan
    from run_series
    where series = $series
    order by started_at desc, run_id desc
    limit $n_runs
)

select scores.sample_id, scores.metric, count(*) as n_runs, count(distinct round(scores.value, 9)) as n_values,
       min(scores.value) as lowest, max(scores.value) as highest, max(scores.run_id) as last_run_id
from scores
inner join lately on lately.run_id = scores.run_id
inner join run_samples on run_samples.run_id = scores.run_id and run_samples.sample_id = scores.sample_id
where scores.value is not null
group by scores.sample_id, scores.metric, scores.metric_version, run_samples.input_hash, lately.judge,
         lately.embeddings, lately.language, lately.plan
having max(scores.value) - min(scores.value) > 1e-9
order by max(scores.value) - min(scores.value) desc, n_values desc, scores.sample_id, scores.metric
limit $most
