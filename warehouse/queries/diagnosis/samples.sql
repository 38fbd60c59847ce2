-- One row per cause and sample, the worst of each cause: the samples with the largest share of it.
with picked as (
    select *
    from sample_causes
    where run_id = $run_id and cause in (select unnest($causes))
    qualify row_number() over (
        partition by cause order by n_deciding / nullif(n_judged, 0) desc nulls last, n_deciding desc, ordinal
    ) <= $n_samples
),

stated as (
    select
        verdicts.sample_id,
        list({
            statement_id: verdicts.statement_id, text: verdicts.text, label: verdicts.label,
            label_reason: verdicts.label_reason, context_ranks: verdicts.context_ranks,
            joint_ranks: verdicts.joint_ranks, turn_ranks: verdicts.turn_ranks, support_reason: verdicts.support_reason
        } order by verdicts.source, verdicts.ordinal) as statements
    from statement_verdicts as verdicts
    inner join picked
        on picked.sample_id = verdicts.sample_id and list_contains(picked.statement_ids, verdicts.statement_id)
    where verdicts.run_id = $run_id
    group by verdicts.sample_id
)

select picked.cause, picked.sample_id, picked.rule, cause_rules.meaning as rule_meaning, picked.evidence,
       picked.n_deciding, picked.n_judged, picked.other_rules, coalesce(stated.statements, []) as statements,
       samples.question, samples.answer, samples.ground_truth
from picked
join cause_rules using (rule)
join run_samples on run_samples.run_id = $run_id and run_samples.sample_id = picked.sample_id
left join samples on samples.sample_id = run_samples.sample_id and samples.input_hash = run_samples.input_hash
left join stated on stated.sample_id = picked.sample_id
order by cause_rules.precedence, picked.n_deciding / nullif(picked.n_judged, 0) desc nulls last,
         picked.n_deciding desc, picked.ordinal
