-- Which of two answers a judge prefers, asked with either of them in front.

-- One row per sample and order in which its two answers were shown.
create table preferences (
    run_id       varchar not null,
    sample_id    varchar not null,
    shown_first  varchar not null,
    verdict      varchar not null,
    reason       varchar,
    cluster      varchar,
    call_id      varchar
);

comment on table preferences is 'One row per sample and order in which its two answers were shown: which the judge prefers.';
comment on column preferences.run_id is 'Run, of kind prefer.';
comment on column preferences.sample_id is 'Sample.';
comment on column preferences.shown_first is 'The answer that stood first: base or candidate.';
comment on column preferences.verdict is 'first, second or tie, by the places in which they stood.';
comment on column preferences.reason is 'The judge''s reason.';
comment on column preferences.cluster is 'Group of samples that are not independent; NULL where each stands for itself.';
comment on column preferences.call_id is 'Call in llm_calls that gave the verdict; NULL where the answers are the same and nothing was asked.';

comment on column runs.kind is 'evaluation; collection, which asked the application and judged nothing; noise, which judged unchanged samples of its parent again; repeats, which asked the application of its parent again; replay, which asked it with contexts of two runs; prompts, which asked about reviewed verdicts of its parent in other words; benchmark, which asked about labelled data; prefer, which asked which of two answers is better, those of its parent or those of another run; testset, which made, refreshed, checked or decided on a test set.';
