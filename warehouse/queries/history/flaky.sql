-- The samples whose scores moved most while nothing that is judged did. With one input and one yardstick it is the judge
-- that moves. From tables and not from `sample_history`, whose windows are over all that was ever scored. Grouped by a hash
-- of both: their texts would take longer than all the rest. Values are counted only of what moved.
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
),

scored as (
    select
        scores.run_id,
        scores.sample_id,
        scores.metric,
        scores.value,
        hash(scores.sample_id, scores.metric, scores.metric_version, inputs.input) as item
    from scores
    inner join inputs on inputs.run_id = scores.run_id and inputs.sample_id = scores.sample_id
    where scores.value is not null
),

moved as (
    select item, count(*) as n_runs, min(value) as lowest, max(value) as highest
    from scored
    group by item
    having max(value) - min(value) > 1e-9
    qualify rank() over (order by max(value) - min(value) desc) <= $most
)

select
    any_value(scored.sample_id) as sample_id,
    any_value(scored.metric) as metric,
    any_value(moved.n_runs) as n_runs,
    count(distinct round(scored.value, 9)) as n_values,
    any_value(moved.lowest) as lowest,
    any_value(moved.highest) as highest,
    max(scored.run_id) as last_run_id
from scored
inner join moved on moved.item = scored.item
group by scored.item
order by any_value(moved.highest - moved.lowest) desc, n_values desc, sample_id, metric
limit $most
