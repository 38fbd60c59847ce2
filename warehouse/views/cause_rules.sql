-- One row per rule that gives a sample its cause. Of the rules that hold, the one with the lowest precedence decides: first
-- whether the verdicts can be trusted at all, then why a fact is missing, in the order in which a bot works
-- (knowledge, retrieval, ranking, generation), last why a fact is wrong.
create or replace view cause_rules as
with rules (precedence, rule, cause, meaning) as (
    values
        (1, 'verdicts_missing', 'not_judged', 'a step that the rules rest on (classify, attribute_answer, attribute_ground_truth) has no verdicts'),
        (2, 'labels_contradict', 'judge_suspect', 'all of the ground truth is found in the answer but no answer statement is TP, or every answer statement is TP but nothing of the ground truth is found'),
        (3, 'support_contradicts', 'judge_suspect', 'the labels say that answer and ground truth state the same, yet the contexts and earlier turns support all of one and nothing of the other'),
        (4, 'usefulness_contradicts', 'judge_suspect', 'contexts support most of the ground truth, yet not one of these contexts is useful'),
        (5, 'votes_split', 'judge_suspect', 'the judge''s votes were split on most of the sample''s verdicts'),
        (6, 'truth_not_to_be_had', 'refused_rightly', 'the ground truth states nothing, and the answer states nothing either, or is non-committal'),
        (7, 'truth_silent', 'ground_truth_doubtful', 'the ground truth states nothing, yet contexts support most of the answer'),
        (8, 'answered_anyway', 'answered_unanswerable', 'the ground truth states nothing, yet the answer does, and contexts do not support most of it'),
        (9, 'truth_unborne', 'ground_truth_doubtful', 'no context supports the ground truth and the answer states nothing of it, yet the right contexts (the ones with the reference ids, when all were retrieved, else the useful ones) support most of the answer'),
        (10, 'refused', 'refused_wrongly', 'the answer states nothing, or is non-committal with no TP, yet contexts or earlier turns support most of the ground truth'),
        (11, 'reference_not_retrieved', 'retrieval_missed', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by no context, and a reference context was not retrieved'),
        (12, 'retrieved_elsewhere', 'retrieval_missed', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by no context of the sample, but by one that was retrieved for another sample of the run'),
        (13, 'truth_outdated', 'ground_truth_outdated', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by no context, and the document that supported it in an earlier run was changed by an update since'),
        (14, 'retrieved_before', 'retrieval_missed', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by no context of the sample, but by one that an earlier run of the series retrieved for it, and no update on record has changed that document since'),
        (15, 'references_lack_it', 'knowledge_base_lacks', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by no context, although every reference context was retrieved'),
        (16, 'nowhere', 'not_in_contexts', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by no context, and no evidence shows whether the knowledge base lacks it or retrieval missed it'),
        (17, 'ranked_low', 'ranked_too_low', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported, but by no context in the top ranks, and a context that supports nothing of the ground truth ranks before it'),
        (18, 'invented', 'hallucinated', 'more than a minor share of the answer is FP and supported by no context and no earlier turn'),
        (19, 'distracted', 'misled_by_contexts', 'more than a minor share of the answer is FP and supported only by contexts that support nothing of the ground truth'),
        (20, 'turn_repeated', 'misled_by_turns', 'more than a minor share of the answer is FP and supported by earlier turns of the conversation alone'),
        (21, 'passed_over', 'contexts_ignored', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by a context in the top ranks'),
        (22, 'turn_passed_over', 'turns_ignored', 'the largest part of what the answer leaves out (more than a minor share of the ground truth) is supported by an earlier turn of the conversation, and by no context in the top ranks'),
        (23, 'truth_incomplete', 'ground_truth_doubtful', 'no more than a minor share of the ground truth is left out, yet most of the answer is FP and supported by the very contexts that support the ground truth'),
        (24, 'unsupported_but_true', 'own_knowledge', 'more than a minor share of the answer is TP and supported by no context and no earlier turn'),
        (25, 'within_tolerance', 'fine', 'none of the above')
)

select rule, cause, precedence, meaning
from rules;

comment on view cause_rules is 'One row per rule that gives a sample its cause.';
comment on column cause_rules.rule is 'Name of the rule, as in sample_causes.rule.';
comment on column cause_rules.cause is 'Cause that it gives; several rules may give the same one.';
comment on column cause_rules.precedence is 'Rank from 1; of several rules that hold for a sample the lowest decides.';
comment on column cause_rules.meaning is 'When the rule holds, in words; cause_thresholds says what minor, most and top are.';
