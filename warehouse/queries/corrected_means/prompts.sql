select prompt_hash, prompt, version, template
from prompts
where language = $language and (starts_with(prompt_hash, $wanted) or version = $wanted)
order by prompt, prompt_hash
