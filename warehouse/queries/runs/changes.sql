-- One row per kind of change since the evaluation before, and one for the samples that are gone: how many, and the
-- requests that judging them took. None for the first run.
with asked as (
    select
        sample_id,
        count(*) filter (where status <> 'cached' and reused_call_id is null) as n_requests,
        count(*) filter (where status = 'cached') as n_reused
    from llm_calls
    where run_id = $run_id
    group by sample_id
),

before as (
    select any_value(previous_run_id) as run_id
    from sample_changes
    where run_id = $run_id
),

counted as (
    select
        change,
        count(*) as n_samples,
        count(*) filter (where judged = 'asked anew') as n_asked_anew,
        sum(n_requests) as n_requests,
        sum(n_reused) as n_reused
    from sample_changes
    left join asked using (sample_id)
    where run_id = $run_id
    group by change

    union all

    select 'gone', count(*), 0, 0, 0
    from run_samples
    where run_id = (select run_id from before)
        and sample_id not in (select sample_id from run_samples where run_id = $run_id)
),

kinds as (select unnest(['changed', 'new', 'unchanged', 'gone']) as change, unnest([1, 2, 3, 4]) as place)

select
    change,
    coalesce(n_samples, 0) as n_samples,
    coalesce(n_asked_anew, 0) as n_asked_anew,
    coalesce(n_requests, 0)::bigint as n_requests,
    coalesce(n_reused, 0)::bigint as n_reused,
    before.run_id as previous_run_id
from kinds
cross join before
left join counted using (change)
where before.run_id is not null
order by kinds.place
