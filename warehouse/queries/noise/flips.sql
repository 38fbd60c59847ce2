-- The runs are named at every table: what a join alone says does not keep the other runs from being read.
with pairs as (
    select runs.run_id as noise_run_id, runs.parent_run_id as run_id
    from runs
    where runs.run_id in (select run_id from wanted)
),

sides as (
    select noise_run_id, noise_run_id as run_id, true as is_again from pairs
    union all
    select noise_run_id, run_id, false from pairs
),

picked as (
    select sides.noise_run_id, sides.run_id, sides.is_again, run_samples.sample_id
    from sides
    inner join run_samples on run_samples.run_id = sides.noise_run_id
),

stated as (
    select
        picked.noise_run_id,
        picked.is_again,
        sample_id,
        source,
        trim(regexp_replace(text, '\s+', ' ', 'g')) as item,
        any_value(label) as label,
        any_value(supported) as supported
    from picked
    inner join (from statements where run_id in (select run_id from sides)) as statements using (run_id, sample_id)
    left join (from classifications where run_id in (select run_id from sides)) as classifications
        using (run_id, sample_id, statement_id)
    left join (from attributions where run_id in (select run_id from sides)) as attributions
        using (run_id, sample_id, statement_id)
    group by all
),

labelled as (
    select noise_run_id, is_again, sample_id, 'extract_' || source as step, item, '' as verdict
    from stated
    union all
    select noise_run_id, is_again, sample_id, 'classify', source || ' ' || item, label
    from stated
    where label is not null
    union all
    select noise_run_id, is_again, sample_id, 'attribute', source || ' ' || item, supported::varchar
    from stated
    where supported is not null
    union all
    select noise_run_id, is_again, sample_id, 'rank', context_rank::varchar, useful::varchar
    from picked
    inner join context_verdicts using (run_id, sample_id)
    union all
    select noise_run_id, is_again, sample_id, 'grade_' || rubric, criterion, rating::varchar
    from picked
    inner join grades using (run_id, sample_id)
    where rating is not null and rubric not in ('relevancy', 'tool_calls', 'result_sets')
),

matched as (
    select coalesce(first.step, again.step) as step, first.verdict as verdict, again.verdict as verdict_again
    from (select * from labelled where not is_again) as first
    full join (select * from labelled where is_again) as again using (noise_run_id, sample_id, step, item)
)

select
    step,
    count(*) as n_items,
    count(*) filter (where verdict is distinct from verdict_again) as n_flipped,
    count(*) filter (where verdict is distinct from verdict_again) / count(*) as flip_rate
from matched
-- A statement that was not split off the second time is a flip of the split, and has no second verdict to compare.
where starts_with(step, 'extract') or (verdict is not null and verdict_again is not null)
group by step
order by step
