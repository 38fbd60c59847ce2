-- What a row of each table is, and what its columns hold, for `\d` and every other client that shows comments.
comment on table runs is 'One row per run: one evaluation of one dataset by one judge with one set of prompts.';
comment on column runs.run_id is 'Run: when it was made, UTC, and four random digits.';
comment on column runs.suite is 'Suite; NULL for a run outside a suite.';
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

comment on table samples is 'One row per distinct content of a sample.';
comment on column samples.input_hash is 'Hash of everything that is judged.';
comment on column samples.sample_id is 'Sample: the same one in every run.';
comment on column samples.question is 'Question.';
comment on column samples.answer is 'Answer of the application under test; NULL when there was none.';
comment on column samples.ground_truth is 'What is right; NULL when there was none.';
comment on column samples.contexts is 'Retrieved contexts in rank order; NULL when there were none.';
comment on column samples.context_ids is 'Their ids, in the same order; NULL when they had none.';
comment on column samples.reference_context_ids is 'Ids of the right contexts; NULL when they are not known.';
comment on column samples.metadata is 'All other columns of the dataset''s row; NULL when there were none.';

comment on table run_samples is 'One row per sample of a run.';
comment on column run_samples.run_id is 'Run.';
comment on column run_samples.sample_id is 'Sample.';
comment on column run_samples.input_hash is 'Content of the sample in this run, as in samples.';
comment on column run_samples.ordinal is 'Place of the sample in the dataset.';
comment on column run_samples.metadata is 'Metadata in this run; NULL where it equals that of the samples row.';

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
comment on column llm_calls.logprobs is 'Of the log-probabilities what a grade may rest on, as JSON; NULL when there were none.';
comment on column llm_calls.status is 'ok, cached (answered from the record), error or refused.';
comment on column llm_calls.error is 'What went wrong last; NULL when nothing did.';
comment on column llm_calls.attempts is 'Times it was sent.';
comment on column llm_calls.prompt_tokens is 'Tokens sent; NULL when the endpoint did not count them.';
comment on column llm_calls.cached_tokens is 'Those of them that the provider still had; NULL when it does not say.';
comment on column llm_calls.completion_tokens is 'Tokens that came back; NULL as prompt_tokens.';
comment on column llm_calls.cost_usd is 'Dollars; NULL when the model''s price is not known.';
comment on column llm_calls.latency_ms is 'Milliseconds until the reply was there.';
comment on column llm_calls.reused_call_id is 'Call whose reply was used again; NULL when it was sent.';
comment on column llm_calls.flow_run_id is 'Prefect flow run.';
comment on column llm_calls.task_run_id is 'Prefect task run.';
comment on column llm_calls.started_at is 'When it was sent, UTC.';

comment on table prompts is 'One row per prompt text that was ever used.';
comment on column prompts.prompt_hash is 'Hash of the text.';
comment on column prompts.prompt is 'Name.';
comment on column prompts.version is 'Version, as in its file.';
comment on column prompts.language is 'Language: en or zh.';
comment on column prompts.template is 'The text.';

comment on table statements is 'One row per statement split from an answer or a ground truth.';
comment on column statements.run_id is 'Run.';
comment on column statements.sample_id is 'Sample.';
comment on column statements.statement_id is 'Statement within the sample: A1, A2, … of the answer, G1, G2, … of the ground truth.';
comment on column statements.source is 'Text it was split from: answer or ground_truth.';
comment on column statements.ordinal is 'Place in its text.';
comment on column statements.text is 'The statement.';
comment on column statements.call_id is 'Call that split the text; NULL when no request was needed.';

comment on table classifications is 'One row per statement of a sample that has both texts.';
comment on column classifications.run_id is 'Run.';
comment on column classifications.sample_id is 'Sample.';
comment on column classifications.statement_id is 'Statement.';
comment on column classifications.label is 'Answer statement: TP or FP; ground-truth statement: TP or FN.';
comment on column classifications.reason is 'The judge''s reason.';
comment on column classifications.call_id is 'Call that gave the label; NULL when no request was needed.';

comment on table attributions is 'One row per statement of a sample that has contexts.';
comment on column attributions.run_id is 'Run.';
comment on column attributions.sample_id is 'Sample.';
comment on column attributions.statement_id is 'Statement.';
comment on column attributions.supported is 'Whether at least one retrieved context supports it.';
comment on column attributions.context_ranks is 'Ranks, from 1, of the contexts that do.';
comment on column attributions.reason is 'The judge''s reason.';
comment on column attributions.call_id is 'Call that said so; NULL when no request was needed.';

comment on table context_verdicts is 'One row per retrieved context of a sample that has a ground truth.';
comment on column context_verdicts.run_id is 'Run.';
comment on column context_verdicts.sample_id is 'Sample.';
comment on column context_verdicts.context_rank is 'Rank of the context, from 1.';
comment on column context_verdicts.useful is 'Whether it is useful for reaching the ground truth.';
comment on column context_verdicts.reason is 'The judge''s reason.';
comment on column context_verdicts.call_id is 'Call that said so; NULL when no request was needed.';

comment on table votes is 'One row per vote on a statement or context.';
comment on column votes.run_id is 'Run.';
comment on column votes.sample_id is 'Sample.';
comment on column votes.step is 'Step that was voted on: classify, attribute or rank.';
comment on column votes.item_id is 'Statement or context.';
comment on column votes.vote is 'Number of the vote, from 1.';
comment on column votes.verdict is 'What it said: a label, or the ranks of the supporting contexts as 1,3, or none.';
comment on column votes.agrees is 'Whether the majority said just that.';
comment on column votes.reason is 'The judge''s reason.';
comment on column votes.call_id is 'Call of the vote.';

comment on table grades is 'One row per sample, rubric and criterion, and per total that follows from them.';
comment on column grades.run_id is 'Run.';
comment on column grades.sample_id is 'Sample.';
comment on column grades.rubric is 'Rubric, or the step that measured without one.';
comment on column grades.criterion is 'Criterion or total.';
comment on column grades.rating is 'Rating after the rubric''s rules.';
comment on column grades.scale_min is 'Lowest rating of the scale.';
comment on column grades.scale_max is 'Highest rating of the scale.';
comment on column grades.said is 'Rating as the judge gave it; NULL when it was not asked.';
comment on column grades.rule is 'Rule that changed the rating; NULL when none did.';
comment on column grades.reason is 'The judge''s reason; NULL when there is none.';
comment on column grades.call_id is 'Call that gave the rating; NULL when no request was needed.';

comment on table similarities is 'One row per similarity of two texts of a sample.';
comment on column similarities.run_id is 'Run.';
comment on column similarities.sample_id is 'Sample.';
comment on column similarities.kind is 'Which texts, or which measure: answer_ground_truth, regenerated_question, bleu, …';
comment on column similarities.value is 'Similarity, 0 to 1.';
comment on column similarities.text is 'Text that a judge wrote for it, such as a regenerated question; NULL when there is none.';
comment on column similarities.call_id is 'Call that wrote it; NULL as text.';

comment on table outcomes is 'One row per sample and step that was asked for: how the step ended there.';
comment on column outcomes.run_id is 'Run.';
comment on column outcomes.sample_id is 'Sample.';
comment on column outcomes.step is 'Step, as in sample_steps.';
comment on column outcomes.reason is 'Why there are no verdicts, one of unscored_reasons; NULL when there are.';
comment on column outcomes.detail is 'What happened, in words; NULL when nothing more is known.';

comment on table scores is 'One row per sample and metric of a run.';
comment on column scores.run_id is 'Run.';
comment on column scores.sample_id is 'Sample.';
comment on column scores.metric is 'Metric.';
comment on column scores.value is 'Score; NULL when it is missing.';
comment on column scores.unscored_reason is 'Why it is missing, one of unscored_reasons; NULL when it is there.';
comment on column scores.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';

comment on table batches is 'One row per batch that was written: its key makes a repeated write harmless.';
