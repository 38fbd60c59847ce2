-- The requests that kept samples rest on.
create or replace temp table kept_keys as
select distinct llm_calls.request_key
from llm_calls
anti join gone_runs on gone_runs.run_id = llm_calls.run_id
anti join gone_pairs on gone_pairs.run_id = llm_calls.run_id and gone_pairs.sample_id = llm_calls.sample_id
