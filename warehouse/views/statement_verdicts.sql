-- One row per statement of an answer or a ground truth, with its label and its support side by side.
create or replace view statement_verdicts as
with judged as (
    select
        statements.run_id,
        statements.sample_id,
        statements.statement_id,
        statements.source,
        statements.ordinal,
        statements.text,
        classifications.label,
        classifications.reason as label_reason,
        attributions.supported,
        attributions.context_ranks,
        attributions.joint_ranks,
        attributions.turn_ranks,
        -- Contexts that support a statement together count only where none does so alone.
        list_concat(attributions.context_ranks, attributions.joint_ranks) as support_ranks,
        -- A set of turns and contexts counts only where nothing supports the statement alone.
        attributions.supported
            and (len(attributions.context_ranks) > 0 or coalesce(len(attributions.turn_ranks), 0) = 0)
            as supported_by_contexts,
        attributions.reason as support_reason
    from statements
    left join classifications
        on classifications.run_id = statements.run_id
        and classifications.sample_id = statements.sample_id
        and classifications.statement_id = statements.statement_id
    left join attributions
        on attributions.run_id = statements.run_id
        and attributions.sample_id = statements.sample_id
        and attributions.statement_id = statements.statement_id
),

-- A window and not a second join: its partition lets a filter on run_id reach the tables.
with_relevant_ranks as (
    select
        judged.*,
        flatten(
            list(coalesce(support_ranks, [])) filter (where source = 'ground_truth' and supported)
                over (partition by run_id, sample_id)
        ) as relevant_ranks
    from judged
)

select
    run_id,
    sample_id,
    statement_id,
    source,
    ordinal,
    text,
    label,
    label_reason,
    supported,
    context_ranks,
    joint_ranks,
    turn_ranks,
    support_ranks,
    supported_by_contexts,
    support_reason,
    case
        when supported is not null then supported and coalesce(list_has_any(support_ranks, relevant_ranks), false)
    end as supported_by_relevant
from with_relevant_ranks;

comment on view statement_verdicts is 'One row per statement of an answer or a ground truth, with its label and its support.';
comment on column statement_verdicts.run_id is 'Run.';
comment on column statement_verdicts.sample_id is 'Sample.';
comment on column statement_verdicts.statement_id is 'Statement within the sample: A1, A2, … of the answer, G1, G2, … of the ground truth.';
comment on column statement_verdicts.source is 'Text the statement was split from: answer or ground_truth.';
comment on column statement_verdicts.ordinal is 'Place of the statement in its text.';
comment on column statement_verdicts.text is 'The statement.';
comment on column statement_verdicts.label is 'Answer statement: TP (stated in the ground truth) or FP. Ground-truth statement: TP (stated in the answer) or FN. NULL when it was not classified.';
comment on column statement_verdicts.label_reason is 'The judge''s reason for the label; NULL when it was not classified.';
comment on column statement_verdicts.supported is 'Whether the retrieved contexts support the statement, one alone or several together, or earlier turns of its conversation do; NULL when it was not attributed.';
comment on column statement_verdicts.context_ranks is 'Ranks, from 1, of the contexts that support the statement alone; NULL when it was not attributed.';
comment on column statement_verdicts.joint_ranks is 'Ranks, from 1, of contexts that support the statement together where none does alone, else empty; NULL when it was not attributed, or before this was asked.';
comment on column statement_verdicts.turn_ranks is 'Places, from 1 for the oldest, of the earlier turns that support the statement, alone or together with the contexts of joint_ranks; NULL when it was not attributed, or without a conversation.';
comment on column statement_verdicts.support_ranks is 'Ranks, from 1, of all contexts that have part in the support, from context_ranks and joint_ranks; NULL when it was not attributed.';
comment on column statement_verdicts.supported_by_contexts is 'Whether the retrieved contexts support the statement without any turn; NULL when it was not attributed.';
comment on column statement_verdicts.support_reason is 'The judge''s reason for the support; NULL when it was not attributed.';
comment on column statement_verdicts.supported_by_relevant is 'Whether one of support_ranks also has part in the support of a ground-truth statement; NULL when it was not attributed.';
