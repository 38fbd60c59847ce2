-- metric: answer_rate
-- version: 1
-- needs: classify
-- meaning: Whether the bot answers where there is an answer
-- One row per sample of the run: where the ground truth states something, 1 when the answer states something, right or
-- wrong, and 0 when it refuses. NULL with no_statements where the ground truth states nothing, also where the answer is
-- missing. The ground truth alone decides which samples count, so the denominator stays the same when the answers change or
-- fail.
with steps as (
    select
        run_id,
        sample_id,
        arg_min(reason, precedence) filter (where step = 'classify') as reason,
        bool_or(step = 'extract_ground_truth' and reason is null) as is_split
    from sample_steps
    where step in ('classify', 'extract_ground_truth')
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null and n_ground_truth > 0 then (n_answer > 0)::int end::double as value,
    case
        when value is not null then null
        when reason = 'no_ground_truth' then reason
        when is_split and coalesce(n_ground_truth, 0) = 0 then 'no_statements'
        else coalesce(reason, 'no_statements')
    end as unscored_reason
from steps
left join sample_statement_counts using (run_id, sample_id)
where run_id = $run_id
