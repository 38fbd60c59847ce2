-- One row per step of a run whose model was asked: how many replies came, and how many of them were of use at once.
select
    step,
    count(*) as n_requests,
    count(reply) as n_replies,
    count(*) filter (where status = 'ok' and error is null) as n_complete,
    count(*) filter (where status = 'ok' and error is not null) as n_incomplete,
    count(*) filter (where status = 'error' and reply is not null) as n_unusable,
    count(reply_repair) as n_repaired,
    list_sort(list_distinct(flatten(list(string_split(reply_repair, ','))))) as repairs,
    count(*) filter (where contains(error, $copied)) as n_copied,
    count(*) filter (where starts_with(error, $late)) as n_late
from llm_calls
where run_id = $run_id and status <> 'cached' and reused_call_id is null
group by step
order by step
