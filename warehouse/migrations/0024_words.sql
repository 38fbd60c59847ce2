-- What columns say since there are more kinds of runs, and sets of people's own that are checked.

comment on column runs.kind is 'evaluation; collection, which asked the application and judged nothing; noise, which judged unchanged samples of its parent again; repeats, which asked the application of its parent again; replay, which asked it with contexts of two runs; prompts, which asked about reviewed verdicts of its parent in other words; benchmark, which asked about labelled data; testset, which made, refreshed, checked or decided on a test set.';
comment on table testset_checks is 'One row per check that a candidate of a test set, or a question of a set that is checked, was put to.';
comment on column testset_checks.candidate_id is 'Candidate, as in testset_candidates; of a set that is refreshed or checked the id of its question.';
comment on column testset_checks.ordinal is 'Place among its checks, from 1; of a candidate none follow the first that it did not stand.';
comment on column testset_checks.name is 'What is found where it does not stand the check, such as form, span, leak, duplicate, unsupported, unanswered, wrong_answer, without_spans, contradicted or answerable.';
