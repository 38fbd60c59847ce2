-- One row per sample and metric: the score of the latest evaluation of this suite, or of this dataset without a suite,
-- that scored it, what was scored, and how far its scores lay apart over the last ones.
with earlier as (
    select run_id, started_at, row_number() over (order by started_at desc, run_id desc) as place
    from runs
    where run_id <> $run_id
        and kind = 'evaluation'
        and status in ('completed', 'incomplete')
        and if($suite is null, dataset = $dataset and suite is null, suite = $suite)
        and variant is not distinct from $variant
    qualify place <= 10
),

latest as (
    select
        scores.sample_id,
        scores.metric,
        arg_min(scores.value, earlier.place) as value,
        arg_min(scores.run_id, earlier.place) as run_id,
        coalesce(stddev_pop(scores.value), 0) as spread
    from scores
    inner join earlier on earlier.run_id = scores.run_id
    where scores.value is not null and list_contains($metrics, scores.metric)
    group by scores.sample_id, scores.metric
)

select latest.*, run_samples.input_hash
from latest
inner join run_samples
    on run_samples.run_id = latest.run_id
    and run_samples.sample_id = latest.sample_id
