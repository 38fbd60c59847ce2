-- One row per verdict that a person can review: a label, a support or a context's usefulness, under a hash of its content.
create or replace view review_items as
with texts as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        run_samples.input_hash,
        sha256(samples.question) as question_hash,
        sha256(coalesce(samples.answer, '')) as answer_hash,
        -- Of several accepted answers classify judges by the one that counts, rank by all, one a line.
        sha256(coalesce(accepted.text, samples.ground_truth, '')) as ground_truth_hash,
        sha256(coalesce(samples.ground_truth, '')) as first_accepted_hash,
        samples.metadata ->> '$.ground_truths[*]' as accepted_answers,
        case
            when list_contains(accepted_answers, samples.ground_truth)
                then sha256(array_to_string(accepted_answers, chr(10)))
            else first_accepted_hash
        end as all_accepted_hash,
        [sha256(coalesce(context, '')) for context in samples.contexts] as context_hashes,
        sha256(array_to_string(context_hashes, ' ')) as contexts_hash,
        -- NULL without turns before the question.
        sha256(nullif(array_to_string(samples.conversation ->> '$[*].text', chr(10)), '')) as turns_hash
    from run_samples
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    left join similarities as accepted
        on accepted.run_id = run_samples.run_id
        and accepted.sample_id = run_samples.sample_id
        and accepted.kind = 'accepted_answer'
),

labelled as (
    select
        classifications.run_id,
        classifications.sample_id,
        'classify' as step,
        classifications.statement_id,
        statements.source,
        statements.text,
        sha256(coalesce(statements.text, '')) as text_hash,
        classifications.label as judge_label,
        classifications.reason,
        texts.question_hash,
        texts.turns_hash,
        -- The same sentence in an answer and in a ground truth is two questions, with other labels to choose from.
        'classify ' || statements.source as kind,
        case when statements.source = 'answer' then texts.ground_truth_hash else texts.answer_hash end as against_hash,
        case when statements.source = 'answer' then texts.first_accepted_hash else against_hash end as former_hash
    from classifications
    inner join statements
        on statements.run_id = classifications.run_id
        and statements.sample_id = classifications.sample_id
        and statements.statement_id = classifications.statement_id
    inner join texts
        on texts.run_id = classifications.run_id
        and texts.sample_id = classifications.sample_id
),

attributed as (
    select
        attributions.run_id,
        attributions.sample_id,
        'attribute' as step,
        attributions.statement_id,
        statements.source,
        statements.text,
        sha256(coalesce(statements.text, '')) as text_hash,
        -- context_recall counts the contexts alone, faithfulness earlier turns too (statement_verdicts).
        attributions.supported
            and (
                statements.source = 'answer'
                or len(attributions.context_ranks) > 0
                or coalesce(len(attributions.turn_ranks), 0) = 0
            ) as is_supported,
        case when is_supported then 'supported' else 'unsupported' end as judge_label,
        attributions.reason,
        texts.question_hash,
        case when statements.source = 'answer' then texts.turns_hash end as turns_hash,
        'attribute' as kind,
        texts.contexts_hash as against_hash,
        against_hash as former_hash
    from attributions
    inner join statements
        on statements.run_id = attributions.run_id
        and statements.sample_id = attributions.sample_id
        and statements.statement_id = attributions.statement_id
    inner join texts
        on texts.run_id = attributions.run_id
        and texts.sample_id = attributions.sample_id
),

ranked as (
    select
        context_verdicts.run_id,
        context_verdicts.sample_id,
        'rank' as step,
        context_verdicts.context_rank,
        samples.contexts[context_verdicts.context_rank] as text,
        coalesce(texts.context_hashes[context_verdicts.context_rank], sha256('')) as text_hash,
        case when context_verdicts.useful then 'useful' else 'not_useful' end as judge_label,
        context_verdicts.reason,
        texts.question_hash,
        texts.turns_hash,
        'rank' as kind,
        texts.all_accepted_hash as against_hash,
        texts.first_accepted_hash as former_hash
    from context_verdicts
    inner join texts
        on texts.run_id = context_verdicts.run_id
        and texts.sample_id = context_verdicts.sample_id
    -- Here and not in texts, which DuckDB keeps in memory: contexts are read only where a query asks for them.
    left join samples
        on samples.sample_id = texts.sample_id
        and samples.input_hash = texts.input_hash
),

united as (
    from labelled
    union all by name
    from attributed
    union all by name
    from ranked
),

-- Labels and draws of a verdict from when turns and other accepted answers were not in its hash keep it.
former as (
    select distinct run_id, sample_id, step, statement_id, context_rank, item_hash
    from (from review_picks union all by name from reviews)
)

select
    united.run_id,
    united.sample_id,
    united.step,
    united.statement_id,
    united.context_rank,
    united.source,
    united.text,
    united.judge_label,
    united.reason,
    coalesce(forgotten_items.question_hash, united.question_hash) as question_hash,
    -- Labels keep the hash of forgotten texts.
    coalesce(
        forgotten_items.item_hash,
        former.item_hash,
        sha256(
            concat_ws(' ', united.kind, united.question_hash, united.text_hash, united.against_hash, united.turns_hash)
        )
    ) as item_hash
from united
left join former
    on former.run_id = united.run_id
    and former.sample_id = united.sample_id
    and former.step = united.step
    and former.statement_id is not distinct from united.statement_id
    and former.context_rank is not distinct from united.context_rank
    and former.item_hash
    = sha256(concat_ws(' ', united.kind, united.question_hash, united.text_hash, united.former_hash))
left join forgotten_items
    on forgotten_items.run_id = united.run_id
    and forgotten_items.sample_id = united.sample_id
    and forgotten_items.step = united.step
    and forgotten_items.item_id = coalesce(united.statement_id, 'C' || united.context_rank);

comment on view review_items is 'One row per verdict that a person can review, under a hash of what is judged and all it is judged against.';
comment on column review_items.run_id is 'Run.';
comment on column review_items.sample_id is 'Sample.';
comment on column review_items.step is 'Step that gave the verdict: classify, attribute or rank.';
comment on column review_items.statement_id is 'Statement the verdict is about; NULL in step rank.';
comment on column review_items.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column review_items.source is 'Text the statement was split from: answer or ground_truth; NULL in step rank.';
comment on column review_items.text is 'The statement, or in step rank the context.';
comment on column review_items.judge_label is 'What the judge says: TP, FP or FN; supported or unsupported, for the ground truth by contexts alone; useful or not_useful.';
comment on column review_items.reason is 'The judge''s reason; NULL when it gave none.';
comment on column review_items.question_hash is 'SHA-256 of the question.';
comment on column review_items.item_hash is 'SHA-256 over the hashes of question, statement or context, and what it is judged against: in classify the other text, in attribute all contexts, in rank the ground truth; and of the turns before the question, except in attribute for the ground truth, where contexts alone count. Of several accepted answers classify has the one that counts, rank all.';
