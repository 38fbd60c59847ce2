-- Grouped by a hash, and filtered afterwards: the table has every call, and texts as keys would take three times as long.
with used as (
    select any_value(run_id) as run_id, any_value(prompt_hash) as prompt_hash
    from llm_calls
    where prompt_hash is not null
    group by hash(run_id, prompt_hash)
)

select used.run_id, prompts.prompt, prompts.version, used.prompt_hash
from used
inner join prompts on prompts.prompt_hash = used.prompt_hash
where used.run_id in (select run_id from run_series where series = $series)
order by used.run_id, prompts.prompt, prompts.version, used.prompt_hash
