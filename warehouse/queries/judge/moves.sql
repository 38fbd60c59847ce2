-- One row per run of these and step: how verdicts moved since the run before in the samples whose texts are the same. A
-- sample's share of TP labels, of supported statements or of useful contexts is one value; difference is their mean move.
with same as (
    select pairs.run_id, pairs.previous_run_id, now.sample_id
    from pairs
    inner join (from run_samples where run_id in (select run_id from listed)) as now on now.run_id = pairs.run_id
    inner join (from run_samples where run_id in (select run_id from listed)) as before
        on before.run_id = pairs.previous_run_id
        and before.sample_id = now.sample_id
        and before.input_hash = now.input_hash
),

given as (
    select run_id, sample_id, 'classify' as step, avg((label = 'TP')::integer) as share
    from classifications
    where run_id in (select run_id from listed)
    group by run_id, sample_id
    union all
    select run_id, sample_id, 'attribute', avg(supported::integer)
    from attributions
    where run_id in (select run_id from listed)
    group by run_id, sample_id
    union all
    select run_id, sample_id, 'rank', avg(useful::integer)
    from context_verdicts
    where run_id in (select run_id from listed)
    group by run_id, sample_id
)

select
    same.run_id,
    same.previous_run_id,
    now.step,
    count(*) as n_samples,
    count(*) filter (where abs(now.share - before.share) > 1e-9) as n_otherwise,
    avg(before.share) as before,
    avg(now.share) as now,
    avg(now.share - before.share) as difference,
    stddev_samp(now.share - before.share) as deviation
from same
inner join given as now on now.run_id = same.run_id and now.sample_id = same.sample_id
inner join given as before
    on before.run_id = same.previous_run_id
    and before.sample_id = same.sample_id
    and before.step = now.step
group by same.run_id, same.previous_run_id, now.step
order by same.run_id desc, now.step
