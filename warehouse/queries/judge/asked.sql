-- One row per run of these and step of its calls: its prompts and the models that answered, each as one text.
select
    llm_calls.run_id,
    llm_calls.step,
    string_agg(
        distinct concat_ws(' ', prompts.version, left(llm_calls.prompt_hash, 8)), ', '
        order by concat_ws(' ', prompts.version, left(llm_calls.prompt_hash, 8))
    ) as prompts,
    string_agg(distinct llm_calls.model, ', ' order by llm_calls.model) filter (where llm_calls.status = 'ok') as models
from (
    select run_id, step, prompt_hash, model, status
    from llm_calls
    where run_id in (select run_id from wanted) and status in ('ok', 'cached') and sample_id is not null
    group by all
) as llm_calls
left join prompts using (prompt_hash)
group by llm_calls.run_id, llm_calls.step
order by llm_calls.run_id, llm_calls.step
