-- One row per verdict behind a score, from the score down to the raw reply, the exact prompt and the sample. A step that
-- left no verdict (and a metric that rests on no step) keeps one row, so that every score is found here.
create or replace view score_lineage as
with asked as (
    select
        scores.run_id,
        scores.sample_id,
        scores.metric,
        scores.value,
        scores.unscored_reason,
        scores.metric_version,
        scores.detail,
        samples.question,
        samples.answer,
        samples.ground_truth,
        samples.contexts,
        samples.conversation,
        metric_steps.step
    from scores
    left join run_samples
        on run_samples.run_id = scores.run_id
        and run_samples.sample_id = scores.sample_id
    left join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    -- Where ids are compared the score rests on no verdict.
    left join metric_steps
        on metric_steps.metric = scores.metric
        and not metric_steps.optional
),

-- Requests and replies are fetched here, before the long texts of the sample come in: joined on to those, DuckDB would
-- take the calls for the smaller side and read every one on record.
replied as (
    select
        verdicts.*,
        calls.status as call_status,
        calls.reply_repair,
        originals.call_id as original_call_id,
        originals.run_id as original_run_id,
        originals.started_at as original_started_at,
        originals.batch_id,
        originals.judge,
        originals.model,
        originals.request,
        originals.reply,
        originals.thoughts,
        originals.prompt_hash,
        prompts.prompt,
        prompts.version as prompt_version,
        prompts.language as prompt_language
    from verdicts
    left join llm_calls as calls
        on calls.run_id = verdicts.run_id
        and calls.call_id = verdicts.call_id
    -- The reply that was used may be that of an earlier run.
    left join llm_calls as originals on originals.call_id = coalesce(calls.reused_call_id, calls.call_id)
    left join prompts on prompts.prompt_hash = originals.prompt_hash
)

select
    asked.run_id,
    asked.sample_id,
    asked.metric,
    asked.value,
    asked.unscored_reason,
    asked.metric_version,
    asked.step,
    sample_steps.reason as step_reason,
    coalesce(asked.detail, sample_steps.detail) as step_detail,
    replied.statement_id,
    replied.source,
    replied.ordinal,
    replied.statement,
    replied.context_rank,
    replied.label,
    replied.supported,
    replied.context_ranks,
    replied.joint_ranks,
    replied.turn_ranks,
    replied.useful,
    replied.similarity,
    replied.criterion,
    replied.rating,
    replied.scale_max,
    replied.share,
    replied.said,
    replied.rule,
    replied.reason,
    replied.statement_call_id,
    replied.call_id,
    replied.call_status,
    replied.original_call_id,
    replied.original_run_id,
    replied.original_started_at,
    replied.batch_id,
    replied.judge,
    replied.model,
    replied.request,
    replied.reply,
    replied.thoughts,
    replied.reply_repair,
    replied.prompt,
    replied.prompt_hash,
    replied.prompt_version,
    replied.prompt_language,
    asked.question,
    asked.answer,
    asked.ground_truth,
    asked.contexts,
    asked.conversation::varchar as conversation
from asked
left join sample_steps
    on sample_steps.run_id = asked.run_id
    and sample_steps.sample_id = asked.sample_id
    and sample_steps.step = asked.step
left join replied
    on replied.run_id = asked.run_id
    and replied.sample_id = asked.sample_id
    and replied.step = asked.step;

comment on view score_lineage is 'One row per verdict behind a score, down to the raw reply; a step without verdicts keeps one row. Name a run and a sample: requests and replies are long.';
comment on column score_lineage.run_id is 'Run.';
comment on column score_lineage.sample_id is 'Sample.';
comment on column score_lineage.metric is 'Metric.';
comment on column score_lineage.value is 'Score; NULL when it is missing.';
comment on column score_lineage.unscored_reason is 'Why the score is missing; NULL when it is there.';
comment on column score_lineage.metric_version is 'Version of the metric, with the parameters that differ from its defaults.';
comment on column score_lineage.step is 'Step the score rests on; NULL when it rests on no verdict, such as a ranking by reference ids.';
comment on column score_lineage.step_reason is 'Why the step has no verdicts; NULL when it has.';
comment on column score_lineage.step_detail is 'What happened in the step, in words; NULL when nothing more is known.';
comment on column score_lineage.statement_id is 'Statement the verdict is about; NULL when it is about a context or the whole texts, or without a verdict.';
comment on column score_lineage.source is 'Text the statement was split from: answer or ground_truth; NULL as statement_id.';
comment on column score_lineage.ordinal is 'Place of the statement in its text; NULL as statement_id.';
comment on column score_lineage.statement is 'The statement; NULL as statement_id.';
comment on column score_lineage.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column score_lineage.label is 'TP, FP or FN in step classify; consistent, contradicts, heeded or ignored in step turns; NULL in others.';
comment on column score_lineage.supported is 'Whether contexts support the statement, one alone or several together, or earlier turns do; NULL but in the attribute steps.';
comment on column score_lineage.context_ranks is 'Ranks, from 1, of the contexts that support the statement alone; NULL but in the attribute steps.';
comment on column score_lineage.joint_ranks is 'Ranks, from 1, of contexts that support the statement together where none does alone; NULL as context_ranks, or before this was asked.';
comment on column score_lineage.turn_ranks is 'Places, from 1, of the earlier turns that support the statement, alone or with the contexts of joint_ranks; NULL as context_ranks, and without a conversation.';
comment on column score_lineage.useful is 'Whether the context is useful for reaching the ground truth; NULL but in step rank.';
comment on column score_lineage.similarity is 'Similarity of two texts, 0 to 1; NULL but in the steps similarity, relevancy and overlap.';
comment on column score_lineage.criterion is 'Criterion or total of a rubric, or kind of similarity; NULL where a statement or context was judged.';
comment on column score_lineage.rating is 'Rating after the rubric''s rules; NULL where nothing was rated.';
comment on column score_lineage.scale_max is 'Highest rating of the scale; NULL where nothing was rated.';
comment on column score_lineage.share is 'How far the rating is up its scale, (rating - lowest) / (highest - lowest), 0 to 1 on scales of any length; NULL where nothing was rated.';
comment on column score_lineage.said is 'Rating as the judge gave it; NULL where no text was rated, or when the judge was not asked.';
comment on column score_lineage.rule is 'Rule that changed the rating, what was rated in place of a missing text, and the effect of log-probabilities where they were asked for; NULL when none of these.';
comment on column score_lineage.reason is 'The judge''s reason; NULL when the step gives none.';
comment on column score_lineage.statement_call_id is 'Call that the statement was split by; NULL without a statement.';
comment on column score_lineage.call_id is 'Call of this run that gave the verdict; NULL when no request was needed.';
comment on column score_lineage.call_status is 'ok when the call was sent, cached when it was answered from the record; NULL as call_id.';
comment on column score_lineage.original_call_id is 'Call whose reply was used: the same one, or the earlier one it reused; NULL as call_id.';
comment on column score_lineage.original_run_id is 'Run of that call; NULL as call_id.';
comment on column score_lineage.original_started_at is 'When that call was sent, UTC; NULL as call_id.';
comment on column score_lineage.batch_id is 'Batch in which that call was sent; NULL when it was sent by itself, and as call_id.';
comment on column score_lineage.judge is 'Judge that was asked; NULL as call_id.';
comment on column score_lineage.model is 'Model that answered; NULL as call_id, or when it did not say.';
comment on column score_lineage.request is 'What was sent; NULL as call_id.';
comment on column score_lineage.reply is 'What came back, without the thoughts before it; NULL as call_id.';
comment on column score_lineage.thoughts is 'The model''s reasoning before that reply; NULL when nothing came.';
comment on column score_lineage.reply_repair is 'Slips of writing that were repaired to read that reply, with commas between, as in llm_calls; NULL when none was needed, and as call_id.';
comment on column score_lineage.prompt is 'Name of the prompt; NULL as call_id.';
comment on column score_lineage.prompt_hash is 'Hash of the prompt''s text, as in prompts; NULL as call_id.';
comment on column score_lineage.prompt_version is 'Version of the prompt; NULL as call_id.';
comment on column score_lineage.prompt_language is 'Language of the prompt; NULL as call_id.';
comment on column score_lineage.question is 'Question of the sample.';
comment on column score_lineage.answer is 'Answer that was judged; NULL without one.';
comment on column score_lineage.ground_truth is 'Ground truth; NULL without one.';
comment on column score_lineage.contexts is 'Retrieved contexts in rank order; NULL without any.';
comment on column score_lineage.conversation is 'Turns before the question, as JSON; NULL without any.';
