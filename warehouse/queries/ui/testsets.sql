-- One row per version of a test set, by the file that it was written to, the newest first.
with versions as (
    select
        path,
        set_hash,
        max_by(parent_hash, made_at) as parent_hash,
        max_by(run_id, made_at) as run_id,
        max_by(source, made_at) as source,
        max_by(n_questions, made_at) as n_questions,
        max(made_at) as made_at
    from testset_versions
    group by path, set_hash
),

noted as (
    select
        testset_changes.set_hash,
        count(distinct testset_changes.question_id) as n_changes,
        count(distinct testset_changes.question_id) filter (
            testset_changes.change in ('changed', 'contradicted', 'answerable') and testset_questions.question_id is null
        ) as n_proposals,
        count(*) filter (testset_changes.change = 'accepted') as n_accepted,
        count(*) filter (testset_changes.change = 'fixed') as n_fixed,
        count(*) filter (testset_changes.change = 'dropped') as n_dropped
    from testset_changes
    left join testset_questions
        on testset_questions.set_hash = testset_changes.set_hash
        and testset_questions.question_id = testset_changes.question_id
    group by testset_changes.set_hash
)

select
    versions.*,
    coalesce(noted.n_changes, 0) as n_changes,
    coalesce(noted.n_proposals, 0) as n_proposals,
    coalesce(noted.n_accepted, 0) as n_accepted,
    coalesce(noted.n_fixed, 0) as n_fixed,
    coalesce(noted.n_dropped, 0) as n_dropped
from versions
left join noted on noted.set_hash = versions.set_hash
order by max(versions.made_at) over (partition by versions.path) desc, versions.path, versions.made_at desc
