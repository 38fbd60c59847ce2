-- One row per rubric that graded in the run, with its prompt.
select distinct prompts.prompt, prompts.template
from llm_calls
join prompts on prompts.prompt_hash = llm_calls.prompt_hash
where llm_calls.run_id = $run_id and llm_calls.step = 'grade_' || prompts.prompt
