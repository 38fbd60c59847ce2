-- One row per request with a good reply on record, of some runs where they are named.
select distinct request_key
from llm_calls
where status = 'ok' and ($run_ids::varchar[] is null or run_id in (select unnest($run_ids::varchar[])))
