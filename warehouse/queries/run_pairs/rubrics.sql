-- One row per rubric that graded in either run, with the texts of its prompts.
with asked as (
    select distinct step, prompt_hash
    from llm_calls
    where run_id in ($base, $candidate) and starts_with(step, 'grade_')
)

select asked.step, list(distinct prompts.template) as templates
from asked
inner join prompts using (prompt_hash)
group by asked.step
