-- A run that took all replies of a step from the record has not heard from the model that answers today.
select
    run_id,
    step,
    list_sort(list(distinct judge || ' ' || coalesce(prompt_hash, ''))) as judges,
    list_sort(list(distinct model) filter (where status = 'ok' and model is not null)) as models
from llm_calls
where run_id in (select run_id from wanted) and status in ('ok', 'cached') and sample_id is not null
group by run_id, step
