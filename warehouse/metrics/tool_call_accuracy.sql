-- metric: tool_call_accuracy
-- version: 4
-- needs: tool_calls
-- parameter: any_order = 0
-- meaning: How far the bot made the tool calls that were expected, with the right arguments
-- One row per sample of the run: 2 x the agreement of paired calls / (expected + made calls), by name and arguments;
-- calls are paired in order, or in any order when any_order is 1.
with paired as (
    select run_id, sample_id, rating as agreement
    from grades
    where rubric = 'tool_calls' and criterion = case when $any_order = 1 then 'any_order' else 'in_order' end
)

select
    run_id,
    sample_id,
    case when reason is null then agreement end as value,
    case when value is null then coalesce(reason, 'no_answer') end as unscored_reason
from sample_steps
left join paired using (run_id, sample_id)
where run_id = $run_id and step = 'tool_calls'
