-- One row per request of a batch whose answer is not on record yet.
select request_hash
from batch_requests
where batch_id = $batch_id
  and request_hash not in (
      select request_hash from llm_calls where batch_id = $batch_id and request_hash is not null
  )
