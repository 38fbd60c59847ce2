-- The narrow key is read first, the long texts of the few rows found last: replies are packed by the thousand, and a
-- plain join would unpack all of them. Reuses (`cached`) have the same key, so they are sorted out before the texts.
with hits as materialized (
    select rowid as place
    from llm_calls
    where request_key in (select request_key from wanted)
),

newest as materialized (
    select arg_max(rowid, started_at) as place
    from llm_calls
    where rowid in (select place from hits)
      and request_hash in (select request_hash from wanted)
      and status = 'ok'
      and reply is not null
      -- What was forgotten is asked for again.
      and not starts_with(reply, 'forgotten on ')
      and ($run_ids::varchar[] is null or run_id in (select unnest($run_ids::varchar[])))
    group by request_hash
)

-- Of a reply that came together with others the call is the one that asked for all of them.
select request_hash, coalesce(reused_call_id, call_id) as call_id, reply, logprobs
from llm_calls
where rowid in (select place from newest)
