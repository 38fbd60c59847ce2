select
    run_samples.ordinal, sample_id, input_hash, question, answer, ground_truth, contexts, context_ids,
    reference_context_ids, coalesce(run_samples.metadata, samples.metadata)::varchar as metadata_json,
    conversation::varchar as conversation_json
from run_samples
semi join wanted using (sample_id)
inner join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id
order by run_samples.ordinal
