-- One row per kind of change since the evaluation before: samples, and the requests that judging them took.
with asked as (
    select
        sample_id,
        count(*) filter (where status <> 'cached') as n_requests,
        count(*) filter (where status = 'cached') as n_reused
    from llm_calls
    where run_id = $run_id
    group by sample_id
),

counted as (
    select
        change,
        count(*) as n_samples,
        count(*) filter (where judged = 'asked anew') as n_asked_anew,
        coalesce(sum(n_requests), 0)::bigint as n_requests,
        coalesce(sum(n_reused), 0)::bigint as n_reused,
        any_value(previous_run_id) as previous_run_id
    from sample_changes
    left join asked using (sample_id)
    where run_id = $run_id
    group by change
)

select *
from counted
order by list_position(['changed', 'new', 'unchanged'], change)
