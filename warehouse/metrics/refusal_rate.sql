-- metric: refusal_rate
-- version: 1
-- needs: classify
-- meaning: Whether the bot refuses where there is no answer
-- One row per sample of the run: where the ground truth states nothing, 1 when the answer states nothing, so that it
-- refuses as it should, and 0 when it states something. NULL with no_statements where the ground truth states
-- something, also where the answer is missing. The ground truth alone decides which samples count, so the denominator
-- stays the same when the answers change or fail.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case
        when coalesce(n_ground_truth, 0) > 0 then null
        when reason is null then 0.0
        -- The classify step has nothing to label where neither text has statements.
        when reason = 'no_statements' and coalesce(n_answer, 0) = 0 then 1.0
    end::double as value,
    case
        when value is not null then null
        when n_ground_truth > 0 then 'no_statements'
        else coalesce(reason, 'no_statements')
    end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
