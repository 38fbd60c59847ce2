select
    run_samples.ordinal, sample_id, input_hash, question, samples.answer, ground_truth, samples.contexts,
    samples.context_ids, reference_context_ids,
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata_json,
    samples.conversation::varchar as conversation_json,
    responses.context_sources::varchar as context_sources,
    if(responses.status = 'failed', coalesce(responses.error, 'it gave no answer'), null) as target_error
from run_samples
join (from samples where rowid >= 0) as samples using (sample_id, input_hash)  -- as in views/sample_rankings.sql
-- A noise run judges the responses of its parent again.
left join (
    from responses
    where run_id = coalesce((select parent_run_id from runs where run_id = $run_id and kind = 'noise'), $run_id)
) as responses using (sample_id)
anti join forgotten_samples
    on forgotten_samples.run_id = $run_id
    and forgotten_samples.sample_id = run_samples.sample_id
where run_samples.run_id = $run_id and run_samples.ordinal between $first and $last
order by run_samples.ordinal
