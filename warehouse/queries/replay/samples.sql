-- One row per wanted sample and run that has it, with everything that a question asked again is made of.
select
    wanted.sample_id,
    run_samples.run_id = $candidate as of_candidate,
    samples.question,
    samples.answer,
    samples.ground_truth,
    samples.contexts,
    samples.context_ids,
    samples.reference_context_ids,
    samples.conversation::varchar as conversation_json,
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata_json,
    samples.input_hash
from wanted
inner join run_samples using (sample_id)
inner join samples using (sample_id, input_hash)
where run_samples.run_id in ($base, $candidate)
