-- One row per verdict of any step: a statement found, a label, a support, a context's usefulness, a similarity, a
-- rubric's rating.
create or replace view verdicts as
with found as (
    select
        run_id,
        sample_id,
        'extract_' || source as step,
        statement_id,
        source,
        ordinal,
        text as statement,
        call_id
    from statements
),

labelled as (
    select
        classifications.run_id,
        classifications.sample_id,
        'classify' as step,
        classifications.statement_id,
        statements.source,
        statements.ordinal,
        statements.text as statement,
        statements.call_id as statement_call_id,
        classifications.label,
        classifications.reason,
        classifications.call_id
    from classifications
    left join statements
        on statements.run_id = classifications.run_id
        and statements.sample_id = classifications.sample_id
        and statements.statement_id = classifications.statement_id
),

attributed as (
    select
        attributions.run_id,
        attributions.sample_id,
        'attribute_' || statements.source as step,
        attributions.statement_id,
        statements.source,
        statements.ordinal,
        statements.text as statement,
        statements.call_id as statement_call_id,
        attributions.supported,
        attributions.context_ranks,
        attributions.joint_ranks,
        attributions.turn_ranks,
        attributions.reason,
        attributions.call_id
    from attributions
    left join statements
        on statements.run_id = attributions.run_id
        and statements.sample_id = attributions.sample_id
        and statements.statement_id = attributions.statement_id
),

ranked as (
    select run_id, sample_id, 'rank' as step, context_rank, useful, reason, call_id
    from context_verdicts
),

compared as (
    select
        run_id,
        sample_id,
        case kind
            when 'answer_ground_truth' then 'similarity'
            when 'regenerated_question' then 'relevancy'
            else 'overlap'
        end as step,
        text as statement,
        value as similarity,
        kind as criterion,
        call_id
    from similarities
),

graded as (
    select
        run_id,
        sample_id,
        -- What was measured without a rubric's prompt has the name of its step.
        case when rubric in ('relevancy', 'tool_calls', 'result_sets') then rubric else 'grade_' || rubric end as step,
        criterion,
        rating,
        scale_min,
        scale_max,
        said,
        rule,
        reason,
        call_id
    from grades
),

cited as (
    select run_id, sample_id, 'citations' as step, ordinal, marker as statement, statement_id, context_rank, call_id
    from citations
),

united as (
    from found
    union all by name
    from labelled
    union all by name
    from attributed
    union all by name
    from ranked
    union all by name
    from compared
    union all by name
    from graded
    union all by name
    from cited
    -- And from the tables of warehouse/steps.toml that are not named above.
    $further
)

select
    run_id,
    sample_id,
    step,
    statement_id,
    source,
    ordinal,
    statement,
    context_rank,
    label,
    supported,
    context_ranks,
    joint_ranks,
    turn_ranks,
    useful,
    similarity,
    criterion,
    rating,
    scale_min,
    scale_max,
    (rating - scale_min) / nullif(scale_max - scale_min, 0) as share,
    said,
    rule,
    reason,
    call_id,
    statement_call_id
from united;

comment on view verdicts is 'One row per verdict of any step.';
comment on column verdicts.run_id is 'Run.';
comment on column verdicts.sample_id is 'Sample.';
comment on column verdicts.step is 'Step that gave the verdict, as in sample_steps.';
comment on column verdicts.statement_id is 'Statement the verdict is about; NULL when it is about a context or the whole texts.';
comment on column verdicts.source is 'Text the statement was split from: answer or ground_truth; NULL as statement_id.';
comment on column verdicts.ordinal is 'Place of the statement in its text; NULL as statement_id.';
comment on column verdicts.statement is 'The statement, or the regenerated question; NULL when the verdict is about a context or the whole texts.';
comment on column verdicts.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column verdicts.label is 'TP, FP or FN in step classify; consistent, contradicts, heeded or ignored in step turns; NULL in others.';
comment on column verdicts.supported is 'Whether contexts support the statement, one alone or several together, or earlier turns do; NULL but in the attribute steps.';
comment on column verdicts.context_ranks is 'Ranks, from 1, of the contexts that support the statement alone; NULL but in the attribute steps.';
comment on column verdicts.joint_ranks is 'Ranks, from 1, of contexts that support the statement together where none does alone; NULL as context_ranks, or before this was asked.';
comment on column verdicts.turn_ranks is 'Places, from 1, of the earlier turns that support the statement, alone or with the contexts of joint_ranks; NULL as context_ranks, and without a conversation.';
comment on column verdicts.useful is 'Whether the context is useful for reaching the ground truth; NULL but in step rank.';
comment on column verdicts.similarity is 'Similarity of two texts, 0 to 1; NULL but in the steps similarity, relevancy and overlap.';
comment on column verdicts.criterion is 'Criterion or total of a rubric, or kind of similarity; NULL where a statement or context was judged.';
comment on column verdicts.rating is 'Rating after the rubric''s rules; NULL where nothing was rated.';
comment on column verdicts.scale_min is 'Lowest rating of the scale; NULL where nothing was rated.';
comment on column verdicts.scale_max is 'Highest rating of the scale; NULL where nothing was rated.';
comment on column verdicts.share is 'How far the rating is up its scale, (rating - lowest) / (highest - lowest), 0 to 1 on scales of any length; NULL where nothing was rated.';
comment on column verdicts.said is 'Rating as the judge gave it; NULL where no text was rated, or when the judge was not asked.';
comment on column verdicts.rule is 'Rule that changed the rating, what was rated in place of a missing text, and the effect of log-probabilities where they were asked for; NULL when none of these.';
comment on column verdicts.reason is 'The judge''s reason; NULL when the step gives none.';
comment on column verdicts.call_id is 'Call in llm_calls that gave the verdict; NULL when no request was needed.';
comment on column verdicts.statement_call_id is 'Call in llm_calls that the statement was split by; NULL without a statement, or when the step is the split itself.';
