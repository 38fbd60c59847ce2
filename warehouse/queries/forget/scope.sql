-- One row per run of which samples are to be forgotten that are not yet: runs that fit the rule, and their noise runs; for
-- a sample the runs that hold any of its texts.
-- The run that the next one of a suite is compared with keeps its scores, however old it is; so does one that the gate
-- of a suite names.
with good as (
    select run_id, null::timestamp as accepted_at
    from gate_decisions
    where origin = 'suite'
    group by run_id
    having arg_max(is_baseline and outcome = 'passed', decided_at)
    union all
    select run_id, max(accepted_at) from gate_acceptances group by run_id
),

baselines as (
    select arg_max(runs.run_id, (coalesce(good.accepted_at, runs.started_at), runs.run_id)) as run_id
    from runs
    inner join good using (run_id)
    where runs.suite is not null
    group by runs.suite
    union all
    select runs.run_id
    from runs
    inner join (
        select distinct arg_max(config ->> '$.gate.against', (started_at, run_id)) as name
        from runs
        where suite is not null and kind = 'evaluation'
        group by suite
    ) as named on named.name in (runs.run_id, runs.label)
),

fitting as (
    select run_id
    from runs
    where run_id in (select unnest($run_ids::varchar[]))
        -- A test set is not a night: it is forgotten by its name.
        or (
            $before is not null and started_at < $before and ($suite is null or suite = $suite) and kind <> 'testset'
            and not ($with_scores and run_id in (select run_id from baselines))
        )
),

-- Runs that compare answers, try prompts or make test sets have no rows of run_samples.
holding as (
    select run_id from run_samples where sample_id = $sample_id
    union
    select run_id from llm_calls where sample_id = $sample_id
    union
    select run_id from preferences where sample_id = $sample_id
    union
    select run_id from outcomes where sample_id = $sample_id
    union
    select run_id from testset_candidates where question_id = $sample_id
    union
    select run_id from testset_checks where candidate_id = $sample_id
    union
    select run_id from testset_changes where question_id = $sample_id
    union
    select testset_versions.run_id
    from testset_versions
    inner join testset_questions using (set_hash)
    where testset_questions.question_id = $sample_id
),

chosen as (
    select run_id, status
    from runs
    where run_id in (select run_id from holding)
        or run_id in (select run_id from fitting)
        or (kind = 'noise' and parent_run_id in (select run_id from fitting))
)

select chosen.run_id, chosen.status, if($sample_id is null, count(run_samples.sample_id), 1) as n_samples
from chosen
left join run_samples
    on run_samples.run_id = chosen.run_id
    and $sample_id is null
where not exists (
    select 1
    from forgotten
    where forgotten.run_id = chosen.run_id
        and (forgotten.sample_id is null or forgotten.sample_id is not distinct from $sample_id)
        and forgotten.with_scores >= $with_scores
)
group by chosen.run_id, chosen.status
order by chosen.run_id
