-- One row per trace that began in [$since, $until), of one service or of all, and per earlier trace of a session of theirs:
-- session by session, each in the order in time.
with begun as (
    select
        trace_id,
        min(started_at) as began_at,
        any_value(session_id order by started_at) filter (where session_id is not null) as session_id,
        $service::varchar is null or coalesce(bool_or(service = $service), false) as is_of_service
    from spans
    group by trace_id
),

wanted as (
    select * from begun where began_at >= $since and began_at < $until and is_of_service
)

select trace_id, began_at < $since as is_earlier
from begun
where
    trace_id in (select trace_id from wanted)
    or (began_at < $since and session_id in (select session_id from wanted))
order by
    min(began_at) over (partition by coalesce(session_id, trace_id)), coalesce(session_id, trace_id), began_at, trace_id
