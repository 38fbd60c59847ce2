-- The samples of a run that had no target: its dataset brought answers and contexts.
select
    sample_id, answer, contexts, context_ids, 'ok' as status, null::varchar as error, null::double as latency_ms,
    run_samples.run_id as asked_run_id, question, coalesce(run_samples.metadata, samples.metadata)::varchar
        as metadata_json,
    coalesce(run_samples.metadata, samples.metadata) ->> 'answer_thoughts' as thoughts,
    conversation::varchar as conversation_json
from run_samples
join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id and sample_id in (select sample_id from wanted)
