select
    responses.sample_id, responses.answer, responses.thoughts, responses.contexts, responses.context_ids,
    responses.context_sources::varchar as context_sources, responses.status, responses.error, responses.latency_ms,
    coalesce(responses.reused_run_id, responses.run_id) as asked_run_id, samples.question,
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata_json,
    samples.conversation::varchar as conversation_json
from responses
left join run_samples using (run_id, sample_id)
left join samples using (sample_id, input_hash)
where responses.run_id = $run_id and responses.sample_id in (select sample_id from wanted)
