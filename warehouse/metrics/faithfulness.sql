-- metric: faithfulness
-- version: 3
-- needs: attribute_answer
-- default: yes, place 8
-- correctable: yes
-- meaning: How much of what the answer states is in the retrieved contexts
-- One row per sample of the run: the share of answer statements that the retrieved contexts support, one alone
-- or several together, or earlier turns of its conversation; NULL when the answer has no statements.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'attribute_answer'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then n_answer_supported / nullif(n_answer, 0) end as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
