-- One row per option that a judge's endpoint refused in a run and was not sent again, with the words of its first refusal.
select
    judge,
    arg_min(substr(error, length($not_taken) + 1), started_at) as refusal
from llm_calls
where run_id = $run_id and starts_with(error, $not_taken)
group by judge, split_part(substr(error, length($not_taken) + 1), ':', 1)
order by min(started_at)
