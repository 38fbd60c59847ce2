-- What people say about verdicts, and which verdicts they were asked about.

-- One row per verdict that was picked for review. What a reviewer's file says of strata and probabilities does not count.
create table review_picks (
    export_id      varchar not null,
    run_id         varchar not null,
    sample_id      varchar not null,
    step           varchar not null,
    statement_id   varchar,
    context_rank   integer,
    item_hash      varchar not null,
    question_hash  varchar not null,
    judge_label    varchar not null,
    stratum        varchar not null,
    probability    double not null,
    asked          boolean not null,
    picked_at      timestamp not null
);

comment on table review_picks is 'One row per verdict that was picked for review, and per verdict of the same run that had been reviewed before.';
comment on column review_picks.export_id is 'Export: when it was made, UTC, and four random digits.';
comment on column review_picks.run_id is 'Run.';
comment on column review_picks.sample_id is 'Sample.';
comment on column review_picks.step is 'Step that gave the verdict: classify, attribute or rank.';
comment on column review_picks.statement_id is 'Statement the verdict is about; NULL in step rank.';
comment on column review_picks.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column review_picks.item_hash is 'Hash of what is judged and all it is judged against, as in review_items.';
comment on column review_picks.question_hash is 'Hash of the question, as in review_items.';
comment on column review_picks.judge_label is 'What the judge said when it was picked.';
comment on column review_picks.stratum is 'Group it was picked from at random: votes, judges, gate or rest; reviewed for what had been reviewed before and stands for itself.';
comment on column review_picks.probability is 'Probability of being picked, over 0 to 1: picked of the group / size of the group.';
comment on column review_picks.asked is 'Whether it is in the file; false for what had been reviewed before and was left out.';
comment on column review_picks.picked_at is 'When it was picked, UTC.';

-- One row per label that a person gave. Nothing is overwritten: of a reviewer's labels of one item the latest counts.
create table reviews (
    run_id         varchar not null,
    sample_id      varchar not null,
    step           varchar not null,
    statement_id   varchar,
    context_rank   integer,
    label          varchar not null,
    reviewer       varchar not null,
    reviewed_at    timestamp not null,
    probability    double,
    stratum        varchar,
    item_hash      varchar not null,
    question_hash  varchar not null,
    first_label    varchar,
    judge_label    varchar not null,
    export_id      varchar,
    note           varchar,
    imported_at    timestamp not null
);

comment on table reviews is 'One row per label that a person gave a verdict. Of a reviewer''s labels of one item the latest counts.';
comment on column reviews.run_id is 'Run whose verdict was reviewed.';
comment on column reviews.sample_id is 'Sample.';
comment on column reviews.step is 'Step that gave the verdict: classify, attribute or rank.';
comment on column reviews.statement_id is 'Statement the verdict is about; NULL in step rank.';
comment on column reviews.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column reviews.label is 'What the person says: TP, FP or FN; supported or unsupported; useful or not_useful.';
comment on column reviews.reviewer is 'Who says so.';
comment on column reviews.reviewed_at is 'When, UTC.';
comment on column reviews.probability is 'Probability of being picked, as in review_picks; NULL when it was never picked.';
comment on column reviews.stratum is 'Group it was picked from, as in review_picks; NULL when it was never picked.';
comment on column reviews.item_hash is 'Hash of what is judged and all it is judged against, as in review_items.';
comment on column reviews.question_hash is 'Hash of the question, as in review_items.';
comment on column reviews.first_label is 'What the person said before the judge''s verdict was shown; NULL when it is not known.';
comment on column reviews.judge_label is 'What the judge had said: when it was picked, or when the label came in if it never was.';
comment on column reviews.export_id is 'Export it was picked in; NULL when it was never picked.';
comment on column reviews.note is 'The person''s note; NULL without one.';
comment on column reviews.imported_at is 'When the label came in, UTC.';
