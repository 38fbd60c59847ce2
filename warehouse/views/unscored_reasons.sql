-- One row per reason a score can be missing for. Where several hold, the one with the lowest precedence is given: first
-- what the sample lacks (no resume can fix it), then what went wrong (a resume can), last that there was nothing to judge.
-- The ground truth comes first of all: without one a metric does not apply, and nothing has failed.
create or replace view unscored_reasons as
with reasons (reason, precedence, meaning) as (
    values
        ('no_ground_truth', 1, 'the sample has no ground truth'),
        ('no_answer', 2, 'the sample has no answer'),
        ('no_contexts', 3, 'what was retrieved is not known (an empty list is known: nothing was), or, to compare with the reference ids, no context carries an id'),
        ('no_reference_ids', 4, 'the sample has no reference context ids, and no ground truth to judge its contexts by'),
        ('ids_do_not_match', 5, 'no reference id of the whole run matches a retrieved id: the two name different things, or in different ways'),
        ('no_conversation', 6, 'no turn came before the question'),
        ('language_not_supported', 7, 'the lexical judge, which knows English and Chinese, was asked about another language'),
        ('judge_not_suited', 8, 'the lexical judge, which compares words, cannot tell whether an answer fits the turns before it'),
        ('target_failed', 9, 'the application under test gave no answer'),
        ('judge_failed', 10, 'the judge gave no usable reply'),
        ('embedding_failed', 11, 'the embedding model gave no usable reply'),
        ('budget_exhausted', 12, 'the budget was spent before the sample was judged'),
        ('cancelled', 13, 'the run stopped before the sample was judged, or never asked for the step'),
        ('nothing_to_heed', 14, 'no earlier turn of the user matters for the question'),
        ('too_many_citations', 15, 'the answer cites more often, or has more sentences, than what it cites is compared for'),
        ('measure_failed', 16, 'the SQL of the answer took too long or too much memory, measuring the sample ended the process, or a metric''s Python function raised an exception'),
        ('no_citations', 17, 'the answer cites nothing, so that there is no citation to take a share of'),
        ('no_statements', 18, 'there is no statement to take a share of; answer_rate counts samples whose ground truth states something, refusal_rate the others')
)

select
    reason,
    precedence,
    meaning,
    -- A text that the sample lacks by its nature is not a failure: the metric does not apply to it.
    reason in (
        'no_answer', 'language_not_supported', 'target_failed', 'judge_failed', 'embedding_failed', 'budget_exhausted',
        'cancelled', 'too_many_citations', 'measure_failed'
    ) as is_failure
from reasons;

comment on view unscored_reasons is 'One row per reason a score can be missing for.';
comment on column unscored_reasons.reason is 'Reason, as in scores.unscored_reason.';
comment on column unscored_reasons.precedence is 'Rank from 1; of several reasons for one score the lowest is given.';
comment on column unscored_reasons.meaning is 'What the reason says, in words.';
comment on column unscored_reasons.is_failure is 'True when something failed, which counts against the coverage of a gate; false when the metric does not apply to the sample.';
