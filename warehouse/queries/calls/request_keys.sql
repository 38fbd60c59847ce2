-- One row per request with a good reply on record, of one run where one is named.
select distinct request_key
from llm_calls
where status = 'ok' and ($run_id is null or run_id = $run_id)
