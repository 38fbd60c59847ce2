-- One row per run of a series in which a sample's answer differs from the run before, the newest first.
with here as (
    select series from run_series where run_id = $run_id
),

answered as (
    select
        run_series.run_id,
        run_series.started_at,
        samples.answer,
        -- Where it was forgotten its mark ends in the hash of the answer.
        if(starts_with(samples.answer, 'forgotten on '), left(right(samples.answer, 17), 16), left(md5(samples.answer), 16))
            as answer_hash,
        lag(run_series.run_id) over nights as previous_run_id,
        lag(answer_hash) over nights as previous_hash
    from run_series
    inner join here on here.series = run_series.series
    inner join run_samples on run_samples.run_id = run_series.run_id
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    where run_samples.sample_id = $sample_id and samples.sample_id = $sample_id
    window nights as (order by run_series.started_at, run_series.run_id)
)

select run_id, started_at, answer, previous_run_id
from answered
where previous_run_id is null or answer_hash is distinct from previous_hash
order by started_at desc, run_id desc
limit $most
