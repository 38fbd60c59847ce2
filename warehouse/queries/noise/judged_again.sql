-- Replies from the record are the reply that was paid for; the lexical judge is deterministic.
with base as (
    select sample_id, step, coalesce(reused_call_id, call_id) as reply
    from llm_calls
    where run_id = $base and status in ('ok', 'cached') and sample_id is not null and judge <> 'lexical'
),

candidate as (
    select sample_id, step, coalesce(reused_call_id, call_id) as reply
    from llm_calls
    where run_id = $candidate and status in ('ok', 'cached') and sample_id is not null and judge <> 'lexical'
)

select distinct sample_id, step
from base
full join candidate using (sample_id, step, reply)
where base.reply is null or candidate.reply is null
