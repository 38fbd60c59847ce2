-- How test sets were made and kept true: every candidate with what it stood and what it did not, and every version.

-- One row per question that a judge wrote for a test set, kept or not.
create table testset_candidates (
    run_id          varchar not null,
    candidate_id    varchar not null,
    kind            varchar not null,
    language        varchar,
    passage_ids     varchar[],
    question        varchar not null,
    ground_truth    varchar,
    conversation    varchar,
    spans           varchar,
    reference_ids   varchar[],
    outcome         varchar not null,
    reason          varchar,
    detail          varchar,
    question_id     varchar,
    call_id         varchar
);

comment on table testset_candidates is 'One row per question that a judge wrote for a test set, kept or not.';
comment on column testset_candidates.run_id is 'Run that it was written in, of kind testset.';
comment on column testset_candidates.candidate_id is 'Candidate; its requests have it as their sample_id.';
comment on column testset_candidates.kind is 'fact, number, procedure, several, comparison, conversational or unanswerable.';
comment on column testset_candidates.language is 'Language of its first passage: en or zh.';
comment on column testset_candidates.passage_ids is 'Passages that it was written from.';
comment on column testset_candidates.question is 'The question.';
comment on column testset_candidates.ground_truth is 'Its ground truth; NULL where it was to have none.';
comment on column testset_candidates.conversation is 'What was said before it, as JSON; NULL where nothing was.';
comment on column testset_candidates.spans is 'Words of documents that it rests on, as JSON; NULL where none were found.';
comment on column testset_candidates.reference_ids is 'Passages that bear out its ground truth.';
comment on column testset_candidates.outcome is 'kept, rejected, surplus (good, and not needed) or failed (the judge gave no usable reply).';
comment on column testset_candidates.reason is 'Check that it did not stand; NULL where it stood all.';
comment on column testset_candidates.detail is 'Why, in a sentence; NULL where it stood all.';
comment on column testset_candidates.question_id is 'Id that it has in the set; NULL where it is not in it.';
comment on column testset_candidates.call_id is 'Call whose reply it stands in.';

-- One row per check that a candidate, or a question of a set, was put to.
create table testset_checks (
    run_id          varchar not null,
    candidate_id    varchar not null,
    ordinal         integer not null,
    name            varchar not null,
    passed          boolean not null,
    detail          varchar not null,
    call_id         varchar
);

comment on table testset_checks is 'One row per check that a candidate of a test set was put to, in the order in which they were made.';
comment on column testset_checks.run_id is 'Run, of kind testset.';
comment on column testset_checks.candidate_id is 'Candidate, as in testset_candidates.';
comment on column testset_checks.ordinal is 'Place among its checks, from 1; none follow the first that it did not stand.';
comment on column testset_checks.name is 'What is found where it does not stand the check: form, span, leak, duplicate, unsupported, unanswered, wrong_answer, without_spans, contradicted or answerable.';
comment on column testset_checks.passed is 'Whether it stood the check.';
comment on column testset_checks.detail is 'Why, in a sentence.';
comment on column testset_checks.call_id is 'Call that says so; NULL where none was needed.';

-- One row per version of a test set and run that made it.
create table testset_versions (
    set_hash        varchar not null,
    parent_hash     varchar,
    run_id          varchar not null,
    path            varchar not null,
    source          varchar not null,
    n_questions     bigint not null,
    n_passages      bigint not null,
    made_at         timestamp not null
);

comment on table testset_versions is 'One row per version of a test set and run that made it.';
comment on column testset_versions.set_hash is 'Hash of all its questions.';
comment on column testset_versions.parent_hash is 'Version that it was made from; NULL for a new set.';
comment on column testset_versions.run_id is 'Run that made it, of kind testset.';
comment on column testset_versions.path is 'File that it was written to.';
comment on column testset_versions.source is 'Where the documents were read.';
comment on column testset_versions.n_questions is 'Questions in it.';
comment on column testset_versions.n_passages is 'Passages of the documents.';
comment on column testset_versions.made_at is 'When it was made, UTC.';

-- One row per version and question of it.
create table testset_questions (
    set_hash        varchar not null,
    question_id     varchar not null,
    question_hash   varchar not null,
    kind            varchar not null,
    language        varchar not null,
    question        varchar not null,
    ground_truth    varchar,
    conversation    varchar,
    spans           varchar,
    reference_ids   varchar[]
);

comment on table testset_questions is 'One row per version of a test set and question in it.';
comment on column testset_questions.set_hash is 'Version, as in testset_versions.';
comment on column testset_questions.question_id is 'Id, the same in all versions; the sample_id of runs over the set.';
comment on column testset_questions.question_hash is 'Hash of all that it holds but its id.';
comment on column testset_questions.kind is 'fact, number, procedure, several, comparison, conversational or unanswerable.';
comment on column testset_questions.language is 'en or zh.';
comment on column testset_questions.question is 'The question.';
comment on column testset_questions.ground_truth is 'Its ground truth; NULL where the documents do not answer it.';
comment on column testset_questions.conversation is 'What was said before it, as JSON; NULL where nothing was.';
comment on column testset_questions.spans is 'Words of documents that it rests on, as JSON.';
comment on column testset_questions.reference_ids is 'Documents or passages that a retriever should find.';

-- One row per change between a version of a test set and the one before it.
create table testset_changes (
    set_hash        varchar not null,
    run_id          varchar not null,
    question_id     varchar not null,
    change          varchar not null,
    detail          varchar,
    before          varchar,
    after           varchar,
    call_id         varchar
);

comment on table testset_changes is 'One row per change between a version of a test set and the one before it, and per proposal that waits for a person.';
comment on column testset_changes.set_hash is 'The newer version, as in testset_versions.';
comment on column testset_changes.run_id is 'Run that found it, of kind testset.';
comment on column testset_changes.question_id is 'Question, as in testset_questions.';
comment on column testset_changes.change is 'new, repointed, still_true, changed, void, contradicted or answerable; what a person decided on a proposal: accepted, mended or dropped.';
comment on column testset_changes.detail is 'Why, in a sentence; NULL where there is nothing to say.';
comment on column testset_changes.before is 'Fields that differ, as they were, as JSON; NULL where there are none.';
comment on column testset_changes.after is 'Fields that differ, as they are or should be, as JSON; NULL where there are none.';
comment on column testset_changes.call_id is 'Call that says so; NULL where none was needed.';
