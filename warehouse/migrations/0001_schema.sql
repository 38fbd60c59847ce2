-- All tables. What follows a release comes in numbered files after this one.

-- One row per run: one evaluation of one dataset by one judge with one set of prompts.
create table runs (
    run_id         varchar not null,
    suite          varchar,
    variant        varchar,
    night          varchar,
    label          varchar,
    href           varchar,
    tags           varchar[],
    dataset        varchar,
    dataset_hash   varchar,
    judge          varchar not null,
    embeddings     varchar,
    language       varchar,
    metrics        varchar[],
    "trigger"      varchar not null,
    kb_name        varchar,
    kb_version     varchar,
    flow_run_id    varchar,
    status         varchar not null,
    started_at     timestamp not null,
    finished_at    timestamp,
    n_samples      bigint,
    config         json,
    kind           varchar,
    parent_run_id  varchar,
    suite_hash     varchar,
    code_version   varchar,
    kb_changed     varchar[],
    problem        varchar,
    gate           varchar,
    notify_problem varchar
);

comment on table runs is 'One row per run: one evaluation of one dataset by one judge with one set of prompts.';
comment on column runs.run_id is 'Run: when it was made, UTC, and four random digits.';
comment on column runs.suite is 'Suite; NULL for a run outside a suite.';
comment on column runs.variant is 'Variant of the suite: the NAME of its table [variants.NAME]; NULL for the suite itself and outside a suite.';
comment on column runs.night is 'Run of the suite itself in the night that asked this variant; of the suite itself this run. NULL for a run that was not one of several variants.';
comment on column runs.label is 'Name the run was given; NULL when none was.';
comment on column runs.href is 'Link to what was evaluated; NULL when none was given.';
comment on column runs.tags is 'Tags the run was given.';
comment on column runs.dataset is 'Dataset as it was named; NULL when it was not.';
comment on column runs.dataset_hash is 'Hash of the dataset''s content.';
comment on column runs.judge is 'Judge, as in --judge.';
comment on column runs.embeddings is 'Embedding model; NULL when none was used.';
comment on column runs.language is 'Language of the prompts: en or zh.';
comment on column runs.metrics is 'Metrics that were scored.';
comment on column runs."trigger" is 'What started the run: manual, schedule or event.';
comment on column runs.kb_name is 'Knowledge base whose change started the run; NULL when none did.';
comment on column runs.kb_version is 'Version of that knowledge base; NULL as kb_name.';
comment on column runs.flow_run_id is 'Prefect flow run.';
comment on column runs.status is 'running, completed, incomplete, failed or cancelled.';
comment on column runs.started_at is 'Start, UTC.';
comment on column runs.finished_at is 'End, UTC; NULL while it runs.';
comment on column runs.n_samples is 'Samples of the run; NULL before they are loaded.';
comment on column runs.config is 'All settings of the run, without keys.';
comment on column runs.kind is 'evaluation; collection, which asked the application and judged nothing; noise, which judged unchanged samples of its parent again; repeats, which asked the application of its parent again; replay, which asked it with contexts of two runs; prompts, which asked about reviewed verdicts of its parent in other words; benchmark, which asked about labelled data; prefer, which asked which of two answers is better, its parent''s or another run''s; testset, which made, refreshed, checked or decided on a test set.';
comment on column runs.parent_run_id is 'Run whose responses are judged here, or judged again to measure noise; NULL for a run without a parent.';
comment on column runs.suite_hash is 'Hash of the suite''s file; NULL outside a suite.';
comment on column runs.code_version is 'Version of evalhouse, with a hash of its source; NULL for runs older than this column.';
comment on column runs.kb_changed is 'Ids of documents that were announced as changed; NULL when none were.';
comment on column runs.problem is 'Why the run did not complete; NULL when it did, or is running.';
comment on column runs.gate is 'How the suite''s gate ended: passed or failed; NULL without one.';
comment on column runs.notify_problem is 'Why the suite''s notification was not delivered; NULL when it was, or none was sent.';

-- One row per batch that was written: its key makes a repeated write harmless.
create table batches (
    batch_key   varchar not null,
    run_id      varchar,
    written_at  timestamp not null
);

comment on table batches is 'One row per batch that was written: its key makes a repeated write harmless.';

-- One row per distinct content of a sample: (sample_id, input_hash) is unique.
create table samples (
    input_hash             varchar not null,
    sample_id              varchar not null,
    question               varchar not null,
    answer                 varchar,
    ground_truth           varchar,
    contexts               varchar[],
    context_ids            varchar[],
    reference_context_ids  varchar[],
    metadata               json,
    conversation           json
);

comment on table samples is 'One row per distinct content of a sample.';
comment on column samples.input_hash is 'Hash of everything that is judged.';
comment on column samples.sample_id is 'Sample: the same one in every run.';
comment on column samples.question is 'Question.';
comment on column samples.answer is 'Answer of the application under test; NULL without one.';
comment on column samples.ground_truth is 'What is right; NULL without one.';
comment on column samples.contexts is 'Retrieved contexts in rank order; NULL without any.';
comment on column samples.context_ids is 'Their ids, in the same order; NULL when they had none.';
comment on column samples.reference_context_ids is 'Ids of the right contexts; NULL when they are not known.';
comment on column samples.metadata is 'All other columns of the dataset''s row; NULL without any.';
comment on column samples.conversation is 'The turns before the question, the oldest first, as objects with role (user or assistant), text, and contexts and context_ids of an assistant''s turn where they are known; NULL for a question that begins its conversation, or has none.';

-- One row per sample of a run. metadata is NULL where it equals that of the samples row.
create table run_samples (
    run_id      varchar not null,
    sample_id   varchar not null,
    input_hash  varchar not null,
    ordinal     bigint not null,
    metadata    json,
    cluster     varchar
);

comment on table run_samples is 'One row per sample of a run.';
comment on column run_samples.run_id is 'Run.';
comment on column run_samples.sample_id is 'Sample.';
comment on column run_samples.input_hash is 'Content of the sample in this run, as in samples.';
comment on column run_samples.ordinal is 'Place of the sample in the dataset.';
comment on column run_samples.metadata is 'Metadata in this run; NULL where it equals that of the samples row.';
comment on column run_samples.cluster is 'Column of the metadata and its value, such as document_id="d1", that samples of one group share; NULL where a run has no groups. In a run with groups a sample that is of none has its own. The column is the first known one of which some samples of the run share a value, or the one that the suite''s gate names.';

-- One row per request to a model, successful, failed or answered from the record.
create table llm_calls (
    call_id            varchar not null,
    run_id             varchar not null,
    sample_id          varchar,
    step               varchar not null,
    prompt             varchar,
    prompt_hash        varchar,
    judge              varchar not null,
    model              varchar,
    request_hash       varchar not null,
    request_key        ubigint not null,
    request            json /* plain file: using compression zstd */,
    reply              varchar /* plain file: using compression zstd */,
    status             varchar not null,
    error              varchar,
    attempts           integer not null,
    prompt_tokens      bigint,
    completion_tokens  bigint,
    cost_usd           double,
    latency_ms         double,
    reused_call_id     varchar,
    flow_run_id        varchar,
    task_run_id        varchar,
    started_at         timestamp not null,
    cached_tokens      bigint,
    logprobs           varchar,
    batch_id           varchar,
    thoughts           varchar,
    reply_repair       varchar
);

comment on table llm_calls is 'One row per request to a model: successful, failed, or answered from the record.';
comment on column llm_calls.call_id is 'Call.';
comment on column llm_calls.run_id is 'Run.';
comment on column llm_calls.sample_id is 'Sample it was asked for.';
comment on column llm_calls.step is 'Step that asked.';
comment on column llm_calls.prompt is 'Name of the prompt.';
comment on column llm_calls.prompt_hash is 'Hash of its text, as in prompts.';
comment on column llm_calls.judge is 'Judge that was asked, as in --judge.';
comment on column llm_calls.model is 'Model that answered; NULL when it did not say.';
comment on column llm_calls.request_hash is 'Hash of everything that can change the reply.';
comment on column llm_calls.request_key is 'Its first 64 bits.';
comment on column llm_calls.request is 'What was sent, without key and headers.';
comment on column llm_calls.reply is 'What came back, unaltered; NULL when nothing did.';
comment on column llm_calls.status is 'ok, cached (answered from the record), error or refused.';
comment on column llm_calls.error is 'What went wrong last; NULL when nothing did.';
comment on column llm_calls.attempts is 'Times it was sent.';
comment on column llm_calls.prompt_tokens is 'Tokens sent; NULL when the endpoint did not count them.';
comment on column llm_calls.completion_tokens is 'Tokens that came back; NULL as prompt_tokens.';
comment on column llm_calls.cost_usd is 'Dollars; NULL when the model''s price is not known.';
comment on column llm_calls.latency_ms is 'Milliseconds until the reply was there.';
comment on column llm_calls.reused_call_id is 'Call whose reply was used again; NULL when it was sent.';
comment on column llm_calls.flow_run_id is 'Prefect flow run.';
comment on column llm_calls.task_run_id is 'Prefect task run.';
comment on column llm_calls.started_at is 'When it was sent, UTC.';
comment on column llm_calls.cached_tokens is 'Prompt tokens that the provider still had; NULL when it does not report them.';
comment on column llm_calls.logprobs is 'Of the log-probabilities what a grade may rest on, as JSON; NULL without any.';
comment on column llm_calls.batch_id is 'Batch in which the request was sent, at the batch''s price; NULL for one that was sent by itself.';
comment on column llm_calls.thoughts is 'The model''s reasoning before its reply, no part of it; NULL when nothing came. Its tokens are among completion_tokens.';
comment on column llm_calls.reply_repair is 'Slips of writing in the reply that were repaired to read it, with commas between: backslash, comma, comment, encoding, heading, label, number, python, surrogate, wrapper, yes_no; NULL when none was needed.';

-- One row per prompt text that was ever used.
create table prompts (
    prompt_hash  varchar not null,
    prompt       varchar not null,
    version      varchar not null,
    language     varchar,
    template     varchar not null
);

comment on table prompts is 'One row per prompt text that was ever used.';
comment on column prompts.prompt_hash is 'Hash of the text.';
comment on column prompts.prompt is 'Name.';
comment on column prompts.version is 'Version, as in its file.';
comment on column prompts.language is 'Language: en or zh.';
comment on column prompts.template is 'The text.';

-- One row per statement split from an answer or a ground truth.
create table statements (
    run_id        varchar not null,
    sample_id     varchar not null,
    statement_id  varchar not null,
    source        varchar not null,
    ordinal       integer not null,
    text          varchar not null,
    call_id       varchar
);

comment on table statements is 'One row per statement split from an answer or a ground truth.';
comment on column statements.run_id is 'Run.';
comment on column statements.sample_id is 'Sample.';
comment on column statements.statement_id is 'Statement within the sample: A1, A2, … of the answer, G1, G2, … of the ground truth.';
comment on column statements.source is 'Text it was split from: answer or ground_truth.';
comment on column statements.ordinal is 'Place in its text.';
comment on column statements.text is 'The statement.';
comment on column statements.call_id is 'Call that split the text; NULL when no request was needed.';

-- One row per statement of a sample that has both texts.
create table classifications (
    run_id        varchar not null,
    sample_id     varchar not null,
    statement_id  varchar not null,
    label         varchar not null,
    reason        varchar,
    call_id       varchar
);

comment on table classifications is 'One row per statement of a sample that has both texts.';
comment on column classifications.run_id is 'Run.';
comment on column classifications.sample_id is 'Sample.';
comment on column classifications.statement_id is 'Statement.';
comment on column classifications.label is 'Answer statement: TP or FP; ground-truth statement: TP or FN.';
comment on column classifications.reason is 'The judge''s reason in words; of a TP by the fused plan the ids of the statements of the other side that carry it.';
comment on column classifications.call_id is 'Call that gave the label; NULL when no request was needed.';

-- One row per statement of a sample that has contexts.
create table attributions (
    run_id         varchar not null,
    sample_id      varchar not null,
    statement_id   varchar not null,
    supported      boolean not null,
    context_ranks  integer[],
    reason         varchar,
    call_id        varchar,
    joint_ranks    integer[],
    turn_ranks     integer[]
);

comment on table attributions is 'One row per statement of a sample that has contexts.';
comment on column attributions.run_id is 'Run.';
comment on column attributions.sample_id is 'Sample.';
comment on column attributions.statement_id is 'Statement.';
comment on column attributions.supported is 'Whether the retrieved contexts support it, one alone or several together, or earlier turns of its conversation do.';
comment on column attributions.context_ranks is 'Ranks, from 1, of the contexts that support it alone.';
comment on column attributions.reason is 'The judge''s reason in words; where contexts support it, by the fused plan their ids.';
comment on column attributions.call_id is 'Call with this verdict; NULL when no request was needed.';
comment on column attributions.joint_ranks is 'Ranks, from 1, of contexts that support it together where none does alone, else empty; NULL for what was judged before this was asked.';
comment on column attributions.turn_ranks is 'Places, from 1 for the oldest, of the earlier turns that support it, alone or together with the contexts of joint_ranks; empty where none does, NULL where there was no conversation and for what was judged before this was asked.';

-- One row per retrieved context of a sample that has a ground truth.
create table context_verdicts (
    run_id        varchar not null,
    sample_id     varchar not null,
    context_rank  integer not null,
    useful        boolean not null,
    reason        varchar,
    call_id       varchar
);

comment on table context_verdicts is 'One row per retrieved context of a sample that has a ground truth.';
comment on column context_verdicts.run_id is 'Run.';
comment on column context_verdicts.sample_id is 'Sample.';
comment on column context_verdicts.context_rank is 'Rank of the context, from 1.';
comment on column context_verdicts.useful is 'Whether it is useful for reaching the ground truth.';
comment on column context_verdicts.reason is 'The judge''s reason in words; of a useful one by the fused plan the ids of the ground truth''s statements that it helps to reach, or words of the ground truth.';
comment on column context_verdicts.call_id is 'Call with this verdict; NULL when no request was needed.';

-- One row per sample and kind of similarity.
create table similarities (
    run_id     varchar not null,
    sample_id  varchar not null,
    kind       varchar not null,
    value      double not null,
    text       varchar,
    call_id    varchar
);

comment on table similarities is 'One row per similarity of two texts of a sample.';
comment on column similarities.run_id is 'Run.';
comment on column similarities.sample_id is 'Sample.';
comment on column similarities.kind is 'Which texts, or which measure: answer_ground_truth, regenerated_question, bleu, …';
comment on column similarities.value is 'Similarity, 0 to 1.';
comment on column similarities.text is 'Text that a judge wrote for it, such as a regenerated question; NULL without one.';
comment on column similarities.call_id is 'Call that wrote it; NULL as text.';

-- One row per sample and step that was asked for: how the step ended there. reason is NULL when it has its verdicts.
create table outcomes (
    run_id     varchar not null,
    sample_id  varchar not null,
    step       varchar not null,
    reason     varchar,
    detail     varchar
);

comment on table outcomes is 'One row per sample and step that was asked for: how the step ended there.';
comment on column outcomes.run_id is 'Run.';
comment on column outcomes.sample_id is 'Sample.';
comment on column outcomes.step is 'Step, as in sample_steps.';
comment on column outcomes.reason is 'Why verdicts are missing, one of unscored_reasons; NULL when there are some.';
comment on column outcomes.detail is 'What happened, in words; NULL when nothing more is known.';

-- One row per sample and metric of a run.
create table scores (
    run_id           varchar not null,
    sample_id        varchar not null,
    metric           varchar not null,
    value            double,
    unscored_reason  varchar,
    metric_version   varchar not null,
    better           varchar,
    minimum          double,
    detail           varchar
);

comment on table scores is 'One row per sample and metric of a run.';
comment on column scores.run_id is 'Run.';
comment on column scores.sample_id is 'Sample.';
comment on column scores.metric is 'Metric.';
comment on column scores.value is 'Score; NULL when it is missing.';
comment on column scores.unscored_reason is 'Why it is missing, one of unscored_reasons; NULL when it is there.';
comment on column scores.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column scores.better is 'Which way is better: high, low or neutral. NULL for what was scored before this was kept; then it is high.';
comment on column scores.minimum is 'The lowest value that the metric can have; NULL where that is 0.';
comment on column scores.detail is 'The exception that a metric''s Python function raised for the sample; NULL otherwise.';

-- One row per vote on an item: the judged statement or context, the number of the vote, its verdict, and its call.
-- `verdict` is the label, or the ranks of the supporting contexts as '1,3', 'none' without any; `agrees` is
-- true where the majority has the same verdict. An item that was judged in parts of long texts has its votes once per part.
create table votes (
    run_id     varchar not null,
    sample_id  varchar not null,
    step       varchar not null,
    item_id    varchar not null,
    vote       integer not null,
    verdict    varchar not null,
    agrees     boolean not null,
    reason     varchar,
    call_id    varchar
);

comment on table votes is 'One row per vote on a statement or context.';
comment on column votes.run_id is 'Run.';
comment on column votes.sample_id is 'Sample.';
comment on column votes.step is 'Step that was voted on: classify, attribute or rank.';
comment on column votes.item_id is 'Statement or context.';
comment on column votes.vote is 'Number of the vote, from 1; in a jury the place of the judge, which its call names.';
comment on column votes.verdict is 'What the vote says: a label, or in attribute the ranks of the contexts that support the statement alone (1,3) or together (1+3), or none.';
comment on column votes.agrees is 'Whether the majority has the same verdict.';
comment on column votes.reason is 'The judge''s reason, as in the table of the step.';
comment on column votes.call_id is 'Call of the vote.';

-- One row per sample, rubric and criterion, and per total that follows from them. `rating` is the judge's rating
-- `said` after the rules; `rule` names the rule that changed it.
create table grades (
    run_id     varchar not null,
    sample_id  varchar not null,
    rubric     varchar not null,
    criterion  varchar not null,
    rating     double not null,
    scale_min  double not null,
    scale_max  double not null,
    said       double,
    rule       varchar,
    reason     varchar,
    call_id    varchar
);

comment on table grades is 'One row per sample, rubric and criterion, and per total that follows from them.';
comment on column grades.run_id is 'Run.';
comment on column grades.sample_id is 'Sample.';
comment on column grades.rubric is 'Rubric, or the step that measured without one.';
comment on column grades.criterion is 'Criterion or total.';
comment on column grades.rating is 'Rating after the rubric''s rules.';
comment on column grades.scale_min is 'Lowest rating of the scale.';
comment on column grades.scale_max is 'Highest rating of the scale.';
comment on column grades.said is 'Rating as the judge gave it; NULL when the judge was not asked.';
comment on column grades.rule is 'Rule that changed the rating; NULL when none did.';
comment on column grades.reason is 'The judge''s reason; NULL without one.';
comment on column grades.call_id is 'Call that gave the rating; NULL when no request was needed.';

-- One row per sample that the application under test was asked about.
create table responses (
    run_id         varchar not null,
    sample_id      varchar not null,
    answer         varchar,
    thoughts       varchar,
    contexts       varchar[],
    context_ids    varchar[],
    latency_ms     double,
    status         varchar not null,
    error          varchar,
    attempts       integer,
    reused_run_id  varchar,
    asked_at       timestamp
);

comment on table responses is 'One row per sample of a run that the application under test was asked about.';
comment on column responses.run_id is 'Run.';
comment on column responses.sample_id is 'Sample.';
comment on column responses.answer is 'What the application answered; NULL when it gave no answer.';
comment on column responses.thoughts is 'The thoughts that were left out of the answer, such as <think>…</think>, as they came; NULL without any, or where a run judges them. For a dataset they are in the sample''s metadata as answer_thoughts.';
comment on column responses.contexts is 'The contexts it retrieved, in its order; NULL when it reported none.';
comment on column responses.context_ids is 'Their ids; NULL when it reported none.';
comment on column responses.latency_ms is 'Milliseconds from the request to the whole response; NULL when it was not asked.';
comment on column responses.status is 'ok, failed, or reused: not asked, because the response of an earlier run was taken.';
comment on column responses.error is 'Why it failed; NULL when it did not.';
comment on column responses.attempts is 'Times it was asked in this run.';
comment on column responses.reused_run_id is 'Run whose response was taken; NULL when it was asked.';
comment on column responses.asked_at is 'When it was asked, UTC.';

-- One row per announced update of a knowledge base that a run has answered.
create table kb_updates (
    event_id     varchar not null,
    kb_name      varchar not null,
    kb_version   varchar,
    kb_changed   varchar[],
    occurred_at  timestamp not null,
    run_id       varchar not null
);

comment on table kb_updates is 'One row per announced update of a knowledge base and the run that answered it.';
comment on column kb_updates.event_id is 'Id of the event in Prefect.';
comment on column kb_updates.kb_name is 'Knowledge base.';
comment on column kb_updates.kb_version is 'Version it was updated to; NULL when it was not announced.';
comment on column kb_updates.kb_changed is 'Ids of changed documents; NULL when they were not announced.';
comment on column kb_updates.occurred_at is 'When it was announced, UTC.';
comment on column kb_updates.run_id is 'Run that answered it.';

-- One row per run and metric: how far the judge is from itself on unchanged samples.
create table noise (
    run_id           varchar not null,
    noise_run_id     varchar not null,
    metric           varchar not null,
    n_samples        bigint not null,
    n_changed        bigint not null,
    mean_difference  double,
    sd_difference    double
);

comment on table noise is 'One row per run and metric: how far the judge is from itself when it judges unchanged samples again.';
comment on column noise.run_id is 'Run whose samples were judged again.';
comment on column noise.noise_run_id is 'Run that judged them again, with its own verdicts and calls.';
comment on column noise.metric is 'Metric.';
comment on column noise.n_samples is 'Samples that both scored.';
comment on column noise.n_changed is 'Samples of these with another score.';
comment on column noise.mean_difference is 'Mean of second score less first; NULL without a sample.';
comment on column noise.sd_difference is 'Standard deviation of that difference over the samples; NULL with fewer than two.';

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
comment on column review_picks.judge_label is 'The judge''s label when it was picked.';
comment on column review_picks.stratum is 'Group it was picked from at random: votes, judges, gate or rest; reviewed for items that were reviewed before and represent themselves.';
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
comment on column reviews.reviewer is 'The reviewer.';
comment on column reviews.reviewed_at is 'When, UTC.';
comment on column reviews.probability is 'Probability of being picked, as in review_picks; NULL when it was never picked.';
comment on column reviews.stratum is 'Group it was picked from, as in review_picks; NULL when it was never picked.';
comment on column reviews.item_hash is 'Hash of what is judged and all it is judged against, as in review_items.';
comment on column reviews.question_hash is 'Hash of the question, as in review_items.';
comment on column reviews.first_label is 'The person''s label before the judge''s verdict was shown; NULL when unknown.';
comment on column reviews.judge_label is 'The judge''s label: when it was picked, or when the label was imported if it never was.';
comment on column reviews.export_id is 'Export it was picked in; NULL when it was never picked.';
comment on column reviews.note is 'The person''s note; NULL without one.';
comment on column reviews.imported_at is 'When the label came in, UTC.';

-- One row per decision of a gate on a run. Nothing is overwritten: of a run's decisions the latest counts.
create table gate_decisions (
    decision_id   varchar not null,
    run_id        varchar not null,
    origin        varchar not null,
    outcome       varchar not null,
    is_baseline   boolean not null,
    undecided     varchar,
    against       varchar,
    base_run_ids  varchar[],
    decided_by    varchar,
    decided_at    timestamp not null
);

comment on table gate_decisions is 'One row per decision of a gate on a run. Of a run''s decisions of one origin the latest counts.';
comment on column gate_decisions.decision_id is 'Decision: when it was made, UTC, and four random digits.';
comment on column gate_decisions.run_id is 'Run that was decided on.';
comment on column gate_decisions.origin is 'suite: the gate of the run''s suite; hand: `evalhouse gate`.';
comment on column gate_decisions.outcome is 'passed or failed.';
comment on column gate_decisions.is_baseline is 'Whether later runs are compared with this one: it passed, and no undecided drop is beyond chance.';
comment on column gate_decisions.undecided is 'What an undecided check did to the gate: pass or fail; NULL for what was decided before this was kept.';
comment on column gate_decisions.against is 'What the drops were measured against: passed, mean_of_passed, previous_any, or a run as it was named; NULL without a drop.';
comment on column gate_decisions.base_run_ids is 'Runs that the drops were measured against; empty without one.';
comment on column gate_decisions.decided_by is 'User whose process decided; NULL when it is not known.';
comment on column gate_decisions.decided_at is 'When it was decided, UTC.';

-- One row per check of a decision.
create table gate_checks (
    decision_id  varchar not null,
    run_id       varchar not null,
    kind         varchar not null,
    metric       varchar,
    limit_value  double not null,
    value        double,
    ci_low       double,
    ci_high      double,
    n            bigint,
    beyond       double,
    noise_floor  double,
    outcome      varchar not null,
    reason       varchar,
    detail       varchar not null,
    by_column    varchar,
    by_value     varchar
);

comment on table gate_checks is 'One row per check of a gate''s decision.';
comment on column gate_checks.decision_id is 'Decision, as in gate_decisions.';
comment on column gate_checks.run_id is 'Run that was decided on.';
comment on column gate_checks.kind is 'min, max, max_drop, trend, min_coverage or max_cost.';
comment on column gate_checks.metric is 'Metric; NULL for the cost.';
comment on column gate_checks.limit_value is 'Limit; a share for min_coverage, dollars for max_cost.';
comment on column gate_checks.value is 'What was found, in the unit of the limit; NULL when there was nothing.';
comment on column gate_checks.ci_low is 'Lower end of its 95 % interval; NULL when it has none.';
comment on column gate_checks.ci_high is 'Upper end of its 95 % interval; NULL when it has none.';
comment on column gate_checks.n is 'Samples it rests on; NULL for the cost.';
comment on column gate_checks.beyond is 'How far the value is on the bad side of the limit, negative on the good side; NULL without a value.';
comment on column gate_checks.noise_floor is 'Largest drop that the judge''s own noise makes; NULL when it is not known, and without a drop.';
comment on column gate_checks.outcome is 'passed, failed or undecided.';
comment on column gate_checks.reason is 'Why it did not pass, in a word; NULL when it passed.';
comment on column gate_checks.detail is 'Why, in a sentence.';
comment on column gate_checks.by_column is 'Column of the metadata for a check of one slice; NULL for a check of the whole run.';
comment on column gate_checks.by_value is 'Value in that column which the samples of the slice share.';

-- One row per run that a person accepted as the baseline of its series.
create table gate_acceptances (
    run_id       varchar not null,
    why          varchar not null,
    accepted_by  varchar not null,
    accepted_at  timestamp not null
);

comment on table gate_acceptances is 'One row per acceptance of a run as the baseline of its series, independent of its gate''s decision.';
comment on column gate_acceptances.run_id is 'Run that was accepted.';
comment on column gate_acceptances.why is 'Why, in the person''s words.';
comment on column gate_acceptances.accepted_by is 'Who accepted it.';
comment on column gate_acceptances.accepted_at is 'When, UTC.';

-- One row per batch and change of it: when it was planned, sent, and over. Nothing is overwritten: the latest counts.
create table provider_batches (
    batch_id           varchar not null,
    run_id             varchar not null,
    judge              varchar not null,
    endpoint           varchar,
    status             varchar not null,
    provider_batch_id  varchar,
    provider_status    varchar,
    n_requests         bigint not null,
    noted_at           timestamp not null
);

comment on table provider_batches is 'One row per batch and change of it: when it was planned, sent, and over.';
comment on column provider_batches.batch_id is 'Batch, by its tag at the provider.';
comment on column provider_batches.run_id is 'Run that sent it.';
comment on column provider_batches.judge is 'Judge whose requests it holds.';
comment on column provider_batches.endpoint is 'Address it was sent to.';
comment on column provider_batches.status is 'planned: about to be sent; sent; over: all its answers were fetched; never_sent.';
comment on column provider_batches.provider_batch_id is 'The provider''s id of it; NULL while it is only planned.';
comment on column provider_batches.provider_status is 'The provider''s word for its status; NULL while it is only planned.';
comment on column provider_batches.n_requests is 'Requests in it.';
comment on column provider_batches.noted_at is 'When this was noted, UTC.';

-- One row per request in a batch.
create table batch_requests (
    batch_id      varchar not null,
    run_id        varchar not null,
    request_hash  varchar not null
);

comment on table batch_requests is 'One row per request in a batch, noted before the batch is sent.';
comment on column batch_requests.batch_id is 'Batch, as in provider_batches.';
comment on column batch_requests.run_id is 'Run that sent it.';
comment on column batch_requests.request_hash is 'Request, as in llm_calls; its first 32 characters are its custom_id.';

-- One row per run and metric.
create table stored_scores (
    run_id          varchar not null,
    metric          varchar not null,
    mean            double,
    ci_low          double,
    ci_high         double,
    n_scored        bigint not null,
    n_unscored      bigint not null,
    metric_version  varchar not null,
    better          varchar not null,
    minimum         double not null,
    cluster         varchar,
    n_clusters      bigint
);

comment on table stored_scores is 'One row per run and metric: what the view run_scores reads, computed when the run is scored.';
comment on column stored_scores.run_id is 'Run.';
comment on column stored_scores.metric is 'Metric.';
comment on column stored_scores.mean is 'As in run_scores.';
comment on column stored_scores.ci_low is 'As in run_scores.';
comment on column stored_scores.ci_high is 'As in run_scores.';
comment on column stored_scores.n_scored is 'As in run_scores.';
comment on column stored_scores.n_unscored is 'As in run_scores.';
comment on column stored_scores.metric_version is 'As in run_scores.';
comment on column stored_scores.better is 'As in run_scores.';
comment on column stored_scores.minimum is 'As in run_scores.';
comment on column stored_scores.cluster is 'As in run_scores.';
comment on column stored_scores.n_clusters is 'As in run_scores.';

-- One row per sample of a run.
create table stored_causes (
    run_id         varchar not null,
    sample_id      varchar not null,
    ordinal        bigint not null,
    cause          varchar not null,
    rule           varchar not null,
    reason         varchar,
    evidence       varchar,
    n_deciding     bigint,
    n_judged       bigint,
    statement_ids  varchar[],
    other_rules    varchar[]
);

comment on table stored_causes is 'One row per sample of a run: what the view sample_causes reads, computed when the run is scored.';
comment on column stored_causes.run_id is 'Run.';
comment on column stored_causes.sample_id is 'Sample.';
comment on column stored_causes.ordinal is 'As in sample_causes.';
comment on column stored_causes.cause is 'As in sample_causes.';
comment on column stored_causes.rule is 'As in sample_causes.';
comment on column stored_causes.reason is 'As in sample_causes.';
comment on column stored_causes.evidence is 'As in sample_causes.';
comment on column stored_causes.n_deciding is 'As in sample_causes.';
comment on column stored_causes.n_judged is 'As in sample_causes.';
comment on column stored_causes.statement_ids is 'As in sample_causes.';
comment on column stored_causes.other_rules is 'As in sample_causes.';

-- One row per run and step.
create table stored_costs (
    run_id             varchar not null,
    step               varchar not null,
    n_calls            bigint not null,
    n_requests         bigint not null,
    n_reused           bigint not null,
    n_failed           bigint not null,
    prompt_tokens      bigint not null,
    completion_tokens  bigint not null,
    cost_usd           double,
    n_unpriced         bigint not null,
    cached_tokens      bigint not null,
    n_estimated        bigint not null,
    priced_usd         double not null
);

comment on table stored_costs is 'One row per run and step: what the view run_costs reads, computed when the run ends.';
comment on column stored_costs.run_id is 'Run.';
comment on column stored_costs.step is 'Step.';
comment on column stored_costs.n_calls is 'As in run_costs.';
comment on column stored_costs.n_requests is 'As in run_costs.';
comment on column stored_costs.n_reused is 'As in run_costs.';
comment on column stored_costs.n_failed is 'As in run_costs.';
comment on column stored_costs.prompt_tokens is 'As in run_costs.';
comment on column stored_costs.completion_tokens is 'As in run_costs.';
comment on column stored_costs.cost_usd is 'As in run_costs.';
comment on column stored_costs.n_unpriced is 'As in run_costs.';
comment on column stored_costs.cached_tokens is 'As in run_costs.';
comment on column stored_costs.n_estimated is 'As in run_costs.';
comment on column stored_costs.priced_usd is 'As in run_costs.';

-- One row per run and model on a server of the user, where the server reports the model.
create table served_models (
    run_id          varchar not null,
    judge           varchar not null,
    endpoint        varchar not null,
    model           varchar not null,
    identity        varchar,
    context_window  bigint,
    noted_at        timestamp not null
);

comment on table served_models is 'One row per run and model that a server of one''s own serves, where the server says what that is.';
comment on column served_models.run_id is 'Run.';
comment on column served_models.judge is 'Judge, as `--judge` names it.';
comment on column served_models.endpoint is 'Address of the server.';
comment on column served_models.model is 'Name that the model is asked for by.';
comment on column served_models.identity is 'What the server says of the model behind the name, such as its digest, file or sizes; NULL when it says nothing.';
comment on column served_models.context_window is 'Tokens that the server has room for in one request and its reply; NULL when it does not say.';
comment on column served_models.noted_at is 'When this was noted, UTC.';

-- One row per question that a judge wrote for a test set, kept or not.
create table testset_candidates (
    run_id         varchar not null,
    candidate_id   varchar not null,
    kind           varchar not null,
    language       varchar,
    passage_ids    varchar[],
    question       varchar not null,
    ground_truth   varchar,
    conversation   varchar,
    spans          varchar,
    reference_ids  varchar[],
    outcome        varchar not null,
    reason         varchar,
    detail         varchar,
    question_id    varchar,
    call_id        varchar
);

comment on table testset_candidates is 'One row per question that a judge wrote for a test set, kept or not.';
comment on column testset_candidates.run_id is 'Run that it was written in, of kind testset.';
comment on column testset_candidates.candidate_id is 'Candidate; its requests have it as their sample_id.';
comment on column testset_candidates.kind is 'fact, number, procedure, several, comparison, conversational or unanswerable.';
comment on column testset_candidates.language is 'Language of its first passage: en or zh.';
comment on column testset_candidates.passage_ids is 'Passages that it was written from.';
comment on column testset_candidates.question is 'The question.';
comment on column testset_candidates.ground_truth is 'Its ground truth; NULL where it was to have none.';
comment on column testset_candidates.conversation is 'The conversation before it, as JSON; NULL without one.';
comment on column testset_candidates.spans is 'Words of documents that it rests on, as JSON; NULL where none were found.';
comment on column testset_candidates.reference_ids is 'Passages that support its ground truth.';
comment on column testset_candidates.outcome is 'kept, rejected, surplus (good, and not needed) or failed (the judge gave no usable reply).';
comment on column testset_candidates.reason is 'Check that it failed; NULL where it passed all.';
comment on column testset_candidates.detail is 'Reason, in a sentence; NULL where it passed all.';
comment on column testset_candidates.question_id is 'Id that it has in the set; NULL where it is not in it.';
comment on column testset_candidates.call_id is 'Call whose reply contains it.';

-- One row per check that a candidate, or a question of a set, was put to.
create table testset_checks (
    run_id        varchar not null,
    candidate_id  varchar not null,
    ordinal       integer not null,
    name          varchar not null,
    passed        boolean not null,
    detail        varchar not null,
    call_id       varchar
);

comment on table testset_checks is 'One row per check that a candidate of a test set, or a question of a set that is checked, was put to.';
comment on column testset_checks.run_id is 'Run, of kind testset.';
comment on column testset_checks.candidate_id is 'Candidate, as in testset_candidates; of a set that is refreshed or checked the id of its question.';
comment on column testset_checks.ordinal is 'Place among its checks, from 1; of a candidate none follow the first that it did not stand.';
comment on column testset_checks.name is 'What is found where it does not stand the check, such as form, span, leak, duplicate, unsupported, unanswered, wrong_answer, without_spans, contradicted or answerable.';
comment on column testset_checks.passed is 'Whether it passed the check.';
comment on column testset_checks.detail is 'Why, in a sentence.';
comment on column testset_checks.call_id is 'Call with this verdict; NULL where none was needed.';

-- One row per version of a test set and run that made it.
create table testset_versions (
    set_hash     varchar not null,
    parent_hash  varchar,
    run_id       varchar not null,
    path         varchar not null,
    source       varchar not null,
    n_questions  bigint not null,
    n_passages   bigint not null,
    made_at      timestamp not null
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
    set_hash       varchar not null,
    question_id    varchar not null,
    question_hash  varchar not null,
    kind           varchar not null,
    language       varchar not null,
    question       varchar not null,
    ground_truth   varchar,
    conversation   varchar,
    spans          varchar,
    reference_ids  varchar[]
);

comment on table testset_questions is 'One row per version of a test set and question in it.';
comment on column testset_questions.set_hash is 'Version, as in testset_versions.';
comment on column testset_questions.question_id is 'Id, the same in all versions; the sample_id of runs over the set.';
comment on column testset_questions.question_hash is 'Hash of all that it holds but its id.';
comment on column testset_questions.kind is 'fact, number, procedure, several, comparison, conversational or unanswerable.';
comment on column testset_questions.language is 'en or zh.';
comment on column testset_questions.question is 'The question.';
comment on column testset_questions.ground_truth is 'Its ground truth; NULL where the documents do not answer it.';
comment on column testset_questions.conversation is 'The conversation before it, as JSON; NULL without one.';
comment on column testset_questions.spans is 'Words of documents that it rests on, as JSON.';
comment on column testset_questions.reference_ids is 'Documents or passages that a retriever should find.';

-- One row per change between a version of a test set and the one before it.
create table testset_changes (
    set_hash     varchar not null,
    run_id       varchar not null,
    question_id  varchar not null,
    change       varchar not null,
    detail       varchar,
    before       varchar,
    after        varchar,
    call_id      varchar
);

comment on table testset_changes is 'One row per change between a version of a test set and the one before it, and per proposal that waits for a person.';
comment on column testset_changes.set_hash is 'The newer version, as in testset_versions.';
comment on column testset_changes.run_id is 'Run that found it, of kind testset.';
comment on column testset_changes.question_id is 'Question, as in testset_questions.';
comment on column testset_changes.change is 'new, repointed, still_true, changed, void, contradicted or answerable; what a person decided on a proposal: accepted, fixed or dropped.';
comment on column testset_changes.detail is 'Why, in a sentence; NULL where there is nothing to say.';
comment on column testset_changes.before is 'Fields that differ, as they were, as JSON; NULL without any.';
comment on column testset_changes.after is 'Fields that differ, now or as proposed, as JSON; NULL without any.';
comment on column testset_changes.call_id is 'Call with this verdict; NULL where none was needed.';

-- One row per forgetting, run and table of which rows were forgotten. Nothing is overwritten but `forgotten_at`.
create table forgotten (
    forgetting_id  varchar not null,
    run_id         varchar not null,
    sample_id      varchar,
    rule           varchar not null,
    with_scores    boolean not null,
    table_name     varchar not null,
    n_rows         bigint not null,
    n_bytes        bigint not null,
    forgotten_by   varchar not null,
    decided_at     timestamp not null,
    forgotten_at   timestamp
);

comment on table forgotten is 'One row per forgetting, run and table: how many of its rows lost their texts, or went altogether.';
comment on column forgotten.forgetting_id is 'Forgetting: one command, or one night of a suite''s [retention].';
comment on column forgotten.run_id is 'Run.';
comment on column forgotten.sample_id is 'Sample that was forgotten; NULL when all of the run''s were.';
comment on column forgotten.rule is 'What was asked for, as it was written.';
comment on column forgotten.with_scores is 'Whether verdicts and scores went too, and so the rows altogether.';
comment on column forgotten.table_name is 'Table; run_samples for the samples themselves.';
comment on column forgotten.n_rows is 'How many rows it was.';
comment on column forgotten.n_bytes is 'Bytes of the texts in these rows.';
comment on column forgotten.forgotten_by is 'Who ran the command, as the system calls them.';
comment on column forgotten.decided_at is 'When it was decided, UTC: the day in the marks of the texts.';
comment on column forgotten.forgotten_at is 'When the rows of the run were gone, UTC; NULL when that was cut short.';

-- One row per verdict that people were asked about, or have labelled, whose texts were forgotten.
create table forgotten_items (
    run_id         varchar not null,
    sample_id      varchar not null,
    step           varchar not null,
    item_id        varchar not null,
    item_hash      varchar not null,
    question_hash  varchar not null
);

comment on table forgotten_items is 'One row per reviewed verdict whose texts were forgotten: the hash under which its labels are stored.';
comment on column forgotten_items.run_id is 'Run.';
comment on column forgotten_items.sample_id is 'Sample.';
comment on column forgotten_items.step is 'classify, attribute or rank.';
comment on column forgotten_items.item_id is 'Statement, or C and the rank of a context.';
comment on column forgotten_items.item_hash is 'Hash of the verdict''s content, as in reviews.';
comment on column forgotten_items.question_hash is 'Hash of the question, as in reviews.';

-- One row per statement of an answer that came after earlier turns, and per point of the user's in them.
create table turn_verdicts (
    run_id        varchar not null,
    sample_id     varchar not null,
    statement_id  varchar not null,
    statement     varchar,
    label         varchar not null,
    turn_ranks    integer[],
    reason        varchar,
    call_id       varchar
);

comment on table turn_verdicts is 'One row per statement of an answer that was checked against the turns before it, and per point that the user made in them.';
comment on column turn_verdicts.run_id is 'Run.';
comment on column turn_verdicts.sample_id is 'Sample.';
comment on column turn_verdicts.statement_id is 'A1, A2, … a statement of the answer, as in statements; U1, U2, … a point that the user made earlier and that matters for the question.';
comment on column turn_verdicts.statement is 'The statement, or the point in the judge''s words.';
comment on column turn_verdicts.label is 'Of a statement: consistent, or contradicts where an earlier answer says otherwise. Of a point: heeded or ignored by the answer.';
comment on column turn_verdicts.turn_ranks is 'Places, from 1 for the oldest, of the turns that the statement contradicts, or of the one that makes the point.';
comment on column turn_verdicts.reason is 'The judge''s reason.';
comment on column turn_verdicts.call_id is 'Call in llm_calls that gave the verdict.';

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
comment on column preferences.shown_first is 'The answer in first place: base or candidate.';
comment on column preferences.verdict is 'first, second or tie, by place.';
comment on column preferences.reason is 'The judge''s reason.';
comment on column preferences.cluster is 'Group of samples that are not independent; NULL where samples are independent.';
comment on column preferences.call_id is 'Call in llm_calls that gave the verdict; NULL where the answers are the same and nothing was asked.';

-- One row per span and time that it was received; a tracer that sends one again makes a second row.
create table spans (
    trace_id     varchar not null,
    span_id      varchar not null,
    parent_id    varchar,
    name         varchar,
    service      varchar,
    session_id   varchar,
    started_at   timestamp not null,
    duration_ms  double,
    status       varchar not null,
    message      varchar,
    attributes   varchar not null,
    events       varchar,
    received_at  timestamp not null
);

comment on table spans is 'One row per span that was received: a step of an application''s work on one question.';
comment on column spans.trace_id is 'Trace, in hex; the sample_id of the sample that is made of it.';
comment on column spans.span_id is 'Span, in hex.';
comment on column spans.parent_id is 'Span around it; NULL for the outermost.';
comment on column spans.name is 'Name that the tracer gave it.';
comment on column spans.service is 'The service.name of the application.';
comment on column spans.session_id is 'Session or conversation; NULL where the tracer names none.';
comment on column spans.started_at is 'When it began, UTC; when it was received, where the tracer does not say.';
comment on column spans.duration_ms is 'Milliseconds it took; NULL where the tracer does not say.';
comment on column spans.status is 'unset, ok or error.';
comment on column spans.message is 'What the tracer says of an error; NULL where it says nothing.';
comment on column spans.attributes is 'Attributes by their full names, as JSON.';
comment on column spans.events is 'Events with their attributes, as JSON; NULL without any.';
comment on column spans.received_at is 'When it was received, UTC.';

-- One row per change of a part that a run has given to a work pool.
create table part_changes (
    run_id         varchar not null,
    first_ordinal  bigint not null,
    last_ordinal   bigint not null,
    attempt        integer not null,
    change         varchar not null,
    worker         varchar,
    reason         varchar,
    flow_run_id    varchar not null,
    changed_at     timestamp not null
);

comment on table part_changes is 'One row per change of a part that a run has given to a work pool.';
comment on column part_changes.run_id is 'Run.';
comment on column part_changes.first_ordinal is 'First sample of the part, by its place in the dataset, from 1.';
comment on column part_changes.last_ordinal is 'Last sample of the part.';
comment on column part_changes.attempt is 'Times that these samples have been given out, with this one.';
comment on column part_changes.change is 'given out, done, lost (its worker died or failed), or stopped (no worker can do better).';
comment on column part_changes.worker is 'Prefect worker that took the part; NULL before one did.';
comment on column part_changes.reason is 'Reason of a loss or stop; NULL for the others.';
comment on column part_changes.flow_run_id is 'Prefect flow run of the part.';
comment on column part_changes.changed_at is 'When the run''s process saw the change, UTC.';

-- One row per run with a budget of samples and sample of its dataset.
create table sample_picks (
    run_id       varchar not null,
    sample_id    varchar not null,
    ordinal      bigint not null,
    probability  double not null,
    picked       boolean not null
);

comment on table sample_picks is 'One row per run with a budget of samples and sample of its dataset, judged or not.';
comment on column sample_picks.run_id is 'Run.';
comment on column sample_picks.sample_id is 'Sample; only picked samples are in run_samples.';
comment on column sample_picks.ordinal is 'Place in the dataset, from 1.';
comment on column sample_picks.probability is 'How probable it was that the sample be judged.';
comment on column sample_picks.picked is 'Whether it is judged.';

-- One row per run with a budget, sample of its dataset and metric.
create table sample_signals (
    run_id     varchar not null,
    sample_id  varchar not null,
    metric     varchar not null,
    signal     double not null,
    origin     varchar not null
);

comment on table sample_signals is 'One row per run with a budget of samples, sample of its dataset and metric: what was known before anything was judged.';
comment on column sample_signals.run_id is 'Run.';
comment on column sample_signals.sample_id is 'Sample.';
comment on column sample_signals.metric is 'Metric.';
comment on column sample_signals.signal is 'What the score was expected to be, 0 to 1.';
comment on column sample_signals.origin is 'Run whose score it is; lexical where it was made of the sample''s texts by the lexical rules.';

-- One row per citation in an answer, statement it belongs to and context it names.
create table citations (
    run_id        varchar not null,
    sample_id     varchar not null,
    ordinal       integer not null,
    marker        varchar not null,
    text_start    integer not null,
    text_end      integer not null,
    statement_id  varchar,
    context_rank  integer,
    call_id       varchar
);

comment on table citations is 'One row per citation in an answer, statement it belongs to and context it names: most have one of each.';
comment on column citations.run_id is 'Run.';
comment on column citations.sample_id is 'Sample.';
comment on column citations.ordinal is 'Place of the citation in the answer, from 1; a mark with several numbers makes several.';
comment on column citations.marker is 'The mark as written, such as [1], [2, 3] or an address.';
comment on column citations.text_start is 'Where in the answer the mark begins, in characters from 0.';
comment on column citations.text_end is 'The first character after it.';
comment on column citations.statement_id is 'Statement of the answer that it belongs to, A1, A2, …; NULL when no statement was split from its sentence, or none were asked for.';
comment on column citations.context_rank is 'Rank, from 1, of the context that it names; NULL when it names nothing that was retrieved.';
comment on column citations.call_id is 'Always NULL: no judge is asked what an answer cites.';

-- One row per event and time that it was received; an exporter that sends one again makes a second row.
create table span_events (
    trace_id     varchar not null,
    span_id      varchar not null,
    name         varchar not null,
    service      varchar,
    logged_at    timestamp not null,
    attributes   varchar not null,
    received_at  timestamp not null
);

comment on table span_events is 'One row per event that was received about a span, in a separate log record: the messages to and from a model.';
comment on column span_events.trace_id is 'Trace, in hex.';
comment on column span_events.span_id is 'Span that it is about, in hex; it may come before that one.';
comment on column span_events.name is 'Name, such as gen_ai.choice.';
comment on column span_events.service is 'The service.name of the application.';
comment on column span_events.logged_at is 'When it was logged, UTC; when it was received, where the application does not say.';
comment on column span_events.attributes is 'Attributes by their full names, and the members of its body, as JSON.';
comment on column span_events.received_at is 'When it was received, UTC.';

-- One row per forgetting: the traces that were deleted by it, with all spans and events of theirs.
create table forgotten_traces (
    forgetting_id   varchar not null,
    rule            varchar not null,
    trace_id        varchar,
    n_traces        bigint not null,
    n_spans         bigint not null,
    n_events        bigint not null,
    n_bytes         bigint not null,
    first_began_at  timestamp not null,
    last_began_at   timestamp not null,
    forgotten_by    varchar not null,
    forgotten_at    timestamp not null
);

comment on table forgotten_traces is 'One row per forgetting of received traces: how many were deleted, with all spans and events of theirs.';
comment on column forgotten_traces.forgetting_id is 'Forgetting: one command, or one pass of a receiver''s [retention]; of a command as in `forgotten`.';
comment on column forgotten_traces.rule is 'What was asked for, as it was written.';
comment on column forgotten_traces.trace_id is 'Trace that was named; NULL where the rule is an age.';
comment on column forgotten_traces.n_traces is 'How many traces.';
comment on column forgotten_traces.n_spans is 'How many rows of `spans` they had.';
comment on column forgotten_traces.n_events is 'How many rows of `span_events` they had.';
comment on column forgotten_traces.n_bytes is 'Bytes of the attributes and events in these rows.';
comment on column forgotten_traces.first_began_at is 'When the first of them began, UTC.';
comment on column forgotten_traces.last_began_at is 'When the last of them began, UTC.';
comment on column forgotten_traces.forgotten_by is 'Who ran the command or the receiver, as the system calls them.';
comment on column forgotten_traces.forgotten_at is 'When they were deleted, UTC.';
