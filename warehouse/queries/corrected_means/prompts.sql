select prompt_hash, prompt, version, template
from prompts
where language = $language and (starts_with(prompt_hash, $version) or version = $version)
order by prompt, prompt_hash
