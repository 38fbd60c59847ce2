-- One row: how many result sets of a run were compared, for how many the bot's query could not be run, and why for one.
select
    count(*) as n_compared,
    count(*) filter (where starts_with(reason, 'the bot''s query fails: ')) as n_failed,
    any_value(reason) filter (where starts_with(reason, 'the bot''s query fails: ')) as reason
from grades
where run_id = $run_id and rubric = 'result_sets' and criterion = 'any_order'
