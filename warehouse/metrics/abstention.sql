-- metric: abstention
-- version: 1
-- needs: classify
-- meaning: Whether the bot states nothing where there is nothing to state, and only there
-- One row per sample of the run: did the bot state nothing where the ground truth states nothing, and only there? 1
-- when neither text has statements; 0 when the answer alone has some (it answered the unanswerable) or the ground
-- truth alone has (it refused what it should have answered); NULL with no_statements when both have, for then the
-- question was to be answered, and was.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'classify'
    group by run_id, sample_id
),

counted as (
    select
        steps.*,
        coalesce(n_answer, 0) > 0 as has_answer,
        coalesce(n_ground_truth, 0) > 0 as has_ground_truth
    from steps
    left join sample_statement_counts using (run_id, sample_id)
)

select
    run_id,
    sample_id,
    case
        when has_answer and has_ground_truth then null
        when reason is null and (has_answer or has_ground_truth) then 0.0
        -- The step has nothing to label where neither text has statements.
        when reason = 'no_statements' and not has_answer and not has_ground_truth then 1.0
    end::double as value,
    case when value is null then coalesce(reason, 'no_statements') end as unscored_reason
from counted
where run_id = $run_id
