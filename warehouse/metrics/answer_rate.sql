-- metric: answer_rate
-- version: 1
-- needs: classify
-- meaning: Whether the bot answers where there is an answer
-- One row per sample of the run: where the ground truth states something, 1 when the answer states something, right or
-- wrong, and 0 when it refuses. NULL with no_statements where the ground truth states nothing. The ground truth alone
-- decides which samples count, so the denominator stays the same when the answers change.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null and n_ground_truth > 0 then (n_answer > 0)::int end::double as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
