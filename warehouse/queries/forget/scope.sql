-- One row per run of which samples are to be forgotten that are not yet: runs that fit the rule, and their noise runs.
with fitting as (
    select run_id
    from runs
    where run_id in (select unnest($run_ids::varchar[]))
        -- A test set is not a night: it is forgotten by its name.
        or ($before is not null and started_at < $before and ($suite is null or suite = $suite) and kind <> 'testset')
),

chosen as (
    select run_id, status
    from runs
    where $sample_id is not null
        or run_id in (select run_id from fitting)
        or (kind = 'noise' and parent_run_id in (select run_id from fitting))
)

select chosen.run_id, chosen.status, count(*) filter (where run_samples.sample_id is not null) as n_samples
from chosen
left join run_samples
    on run_samples.run_id = chosen.run_id
    and ($sample_id is null or run_samples.sample_id = $sample_id)
where not exists (
    select 1
    from forgotten
    where forgotten.run_id = chosen.run_id
        and (forgotten.sample_id is null or forgotten.sample_id is not distinct from $sample_id)
        and forgotten.with_scores >= $with_scores
)
group by chosen.run_id, chosen.status
having $sample_id is null or n_samples > 0
order by chosen.run_id
