with used as (
    select distinct run_id, prompt_hash
    from llm_calls
    where run_id in (select run_id from run_series where series = $series) and prompt_hash is not null
)

select used.run_id, prompts.prompt, prompts.version, used.prompt_hash
from used
inner join prompts on prompts.prompt_hash = used.prompt_hash
order by used.run_id, prompts.prompt, prompts.version, used.prompt_hash
