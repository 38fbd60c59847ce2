-- Calls whose texts are deleted: calls of forgotten samples, unless a kept sample rests on the very same request. Where several
-- texts were sent together, as embeddings are, the request that has them all goes with the first of them. So do the requests
-- of a test set's run that are about many of its questions.
create or replace temp table going_calls as
with together as (
    select distinct llm_calls.reused_call_id as call_id
    from llm_calls
    semi join gone_pairs on gone_pairs.run_id = llm_calls.run_id and gone_pairs.sample_id = llm_calls.sample_id
    where llm_calls.reused_call_id is not null
),

gone as (
    select llm_calls.*
    from llm_calls
    semi join gone_runs on gone_runs.run_id = llm_calls.run_id
    union all
    select llm_calls.*
    from llm_calls
    semi join gone_pairs on gone_pairs.run_id = llm_calls.run_id and gone_pairs.sample_id = llm_calls.sample_id
    union all
    select llm_calls.*
    from llm_calls
    semi join together on together.call_id = llm_calls.call_id
    where llm_calls.sample_id is null
    union all
    select llm_calls.*
    from llm_calls
    semi join runs on runs.run_id = llm_calls.run_id and runs.kind = 'testset'
    semi join gone_pairs on gone_pairs.run_id = llm_calls.run_id
    where llm_calls.sample_id is null
)

select distinct
    run_id,
    call_id,
    coalesce(strlen(request::varchar), 0) + coalesce(strlen(reply), 0) + coalesce(strlen(thoughts), 0)
        + coalesce(strlen(logprobs), 0) + coalesce(strlen(error), 0) as n_bytes
from gone
where not (
        (request is null or is_mark(request ->> '$')) and (reply is null or is_mark(reply))
        and (thoughts is null or is_mark(thoughts)) and logprobs is null and (error is null or is_mark(error))
    )
    and (sample_id is null or request_key not in (from kept_keys))
    and call_id not in (select call_id from live)
limit $most
