-- A reused response was not asked for, and one whose question is not on record may belong to another question. The narrow
-- columns decide which row is wanted; the long texts are read of that one alone.
with asked as (
    select responses.run_id, responses.sample_id, run_samples.input_hash, run_samples.metadata
    from responses
    join asking_runs using (run_id)
    join run_samples using (run_id, sample_id)
    anti join forgotten_samples using (run_id, sample_id)
    where responses.sample_id in (select sample_id from wanted) and responses.reused_run_id is null
    qualify row_number() over (
        partition by responses.sample_id order by asking_runs.started_at desc, responses.run_id desc
    ) = 1
)

select
    asked.sample_id, responses.answer, responses.thoughts, responses.contexts, responses.context_ids,
    responses.context_sources::varchar as context_sources, responses.status, responses.error,
    responses.latency_ms, asked.run_id as asked_run_id, samples.question,
    coalesce(asked.metadata, samples.metadata)::varchar as metadata_json, samples.conversation::varchar as conversation_json
from asked
join responses using (run_id, sample_id)
join samples on samples.sample_id = asked.sample_id and samples.input_hash = asked.input_hash
