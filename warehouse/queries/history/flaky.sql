-- One input and one yardstick: what then moves is the judge. From tables and not from `sample_history`, whose windows
-- are over all that was ever scored. Grouped by a hash of both: their texts would take longer than all the rest.
with lately as (
    select run_id, hash({j: judge, e: embeddings, l: language, p: plan}) as yardstick
    from run_series
    where series = $series
    order by started_at desc, run_id desc
    limit $n_runs
),

inputs as (
    select run_samples.run_id, run_samples.sample_id, hash(run_samples.input_hash, lately.yardstick) as input
    from run_samples
    inner join lately on lately.run_id = run_samples.run_id
)

select
    scores.sample_id,
    scores.metric,
    count(*) as n_runs,
    count(distinct round(scores.value, 9)) as n_values,
    min(scores.value) as lowest,
    max(scores.value) as highest,
    max(scores.run_id) as last_run_id
from scores
inner join inputs on inputs.run_id = scores.run_id and inputs.sample_id = scores.sample_id
where scores.value is not null
group by scores.sample_id, scores.metric, scores.metric_version, inputs.input
having max(scores.value) - min(scores.value) > 1e-9
order by max(scores.value) - min(scores.value) desc, n_values desc, scores.sample_id, scores.metric
limit $most
