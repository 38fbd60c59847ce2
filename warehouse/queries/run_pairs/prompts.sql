-- One row per run and step of its calls: the prompts, by name, version and hash, and the models that answered.
with asked as (
    select run_id, step, prompt_hash, list(distinct model) filter (where status = 'ok') as models
    from llm_calls
    where run_id = $base and status in ('ok', 'cached')
    group by run_id, step, prompt_hash
    union all
    select run_id, step, prompt_hash, list(distinct model) filter (where status = 'ok')
    from llm_calls
    where run_id = $candidate and status in ('ok', 'cached')
    group by run_id, step, prompt_hash
)

select
    asked.run_id = $candidate as of_candidate,
    asked.step,
    string_agg(distinct concat_ws(' ', prompts.version, left(asked.prompt_hash, 8)), ', ') as prompts,
    string_agg(distinct array_to_string(asked.models, ', '), ', ') as models
from asked
left join prompts using (prompt_hash)
group by of_candidate, asked.step
order by asked.step
