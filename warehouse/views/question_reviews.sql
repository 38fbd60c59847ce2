-- One row per question of a test set and reviewer who has decided on it: the latest decision.
create or replace view question_reviews as
with decisions as (
    select
        *,
        json_extract_string("after", '$.reviewer') as reviewer,
        try_cast(json_extract_string("after", '$.reviewed_at') as timestamp) as reviewed_at
    from testset_changes
    where change in ('accepted', 'fixed', 'dropped')
),

latest as (
    select *
    from decisions
    -- A proposal that was taken without anybody looking at it names no reviewer.
    where reviewer is not null
    qualify row_number() over (partition by question_id, reviewer order by reviewed_at desc) = 1
),

-- What wrote the ground truth that was decided on: the newest run before that made or proposed it.
written as (
    select
        testset_changes.question_id,
        testset_changes.change,
        runs.judge,
        runs.started_at
    from testset_changes
    inner join runs on runs.run_id = testset_changes.run_id
    where testset_changes.change in ('new', 'changed', 'contradicted', 'answerable')
),

origins as (
    select
        latest.question_id,
        latest.reviewer,
        max_by(written.judge, written.started_at) as judge,
        max_by(written.change, written.started_at) as origin
    from latest
    inner join written
        on written.question_id = latest.question_id
        and written.started_at <= latest.reviewed_at
    group by latest.question_id, latest.reviewer
)

select
    latest.question_id,
    latest.set_hash,
    latest.run_id,
    coalesce(testset_questions.kind, json_extract_string(latest."before", '$.kind')) as kind,
    coalesce(testset_questions.language, json_extract_string(latest."before", '$.language')) as language,
    origins.judge,
    origins.origin,
    latest.change as decision,
    latest.reviewer,
    latest.reviewed_at,
    json_extract_string(latest."after", '$.note') as note
from latest
left join testset_questions
    on testset_questions.set_hash = latest.set_hash
    and testset_questions.question_id = latest.question_id
left join origins
    on origins.question_id = latest.question_id
    and origins.reviewer = latest.reviewer;

comment on view question_reviews is 'One row per question of a test set and reviewer who has decided on it: the latest decision.';
comment on column question_reviews.question_id is 'Question, as in testset_questions.';
comment on column question_reviews.set_hash is 'Version of the set that the decision went into.';
comment on column question_reviews.run_id is 'Import that brought it, a run of kind testset.';
comment on column question_reviews.kind is 'fact, number, procedure, several, comparison, conversational or unanswerable.';
comment on column question_reviews.language is 'en or zh.';
comment on column question_reviews.judge is 'Judge that wrote the question, or proposed its ground truth; NULL when it is not on record here.';
comment on column question_reviews.origin is 'How it came about: new, or the proposal of a refresh: changed, contradicted or answerable; NULL as judge.';
comment on column question_reviews.decision is 'accepted, fixed or dropped.';
comment on column question_reviews.reviewer is 'Who decided.';
comment on column question_reviews.reviewed_at is 'When, UTC.';
comment on column question_reviews.note is 'The person''s note; NULL without one.';
