-- A question after earlier turns has another prompt. A run that took all replies of a step from the record has not
-- heard from the model that answers today.
with answered as (
    select run_id, step, sample_id, judge || ' ' || coalesce(prompt_hash, '') as judge, model, status
    from llm_calls
    where run_id in (select run_id from wanted) and status in ('ok', 'cached') and sample_id is not null
),

talks as (
    select run_samples.run_id, run_samples.sample_id
    from run_samples
    inner join samples using (sample_id, input_hash)
    where run_samples.run_id in (select run_id from wanted) and samples.conversation is not null
)

select
    run_id,
    step,
    list_sort(list(distinct judge) filter (where talks.sample_id is null)) as judges,
    list_sort(list(distinct judge) filter (where talks.sample_id is not null)) as judges_of_talks,
    list_sort(list(distinct model) filter (where status = 'ok' and model is not null)) as models
from answered
left join talks using (run_id, sample_id)
group by run_id, step
