-- metric: result_set_match
-- version: 3
-- needs: result_sets
-- parameter: ordered = 0
-- meaning: How far the bot's query returns the rows that were expected
-- One row per sample of the run: F1 of the cells that the bot's query returned against the expected one's cells, over
-- rows and columns; times the share of rows in the expected order when ordered is 1.
with compared as (
    select run_id, sample_id, rating as agreement
    from grades
    where rubric = 'result_sets' and criterion = case when $ordered = 1 then 'in_order' else 'any_order' end
)

select
    run_id,
    sample_id,
    case when reason is null then agreement end as value,
    case when value is null then coalesce(reason, 'no_answer') end as unscored_reason
from sample_steps
left join compared using (run_id, sample_id)
where run_id = $run_id and step = 'result_sets'
