-- One row per sample of both runs, in the candidate's order: question, conversation, ground truth and metadata as the
-- candidate has them, the question, conversation, answers and contexts of both.
select
    ours.ordinal,
    ours.sample_id,
    now.input_hash,
    now.question,
    now.ground_truth,
    coalesce(ours.metadata, now.metadata)::varchar as metadata_json,
    now.conversation::varchar as conversation_json,
    was.question as base_question,
    was.conversation::varchar as base_conversation_json,
    was.answer as base_answer,
    now.answer as candidate_answer,
    was.contexts as base_contexts,
    now.contexts as candidate_contexts
from run_samples as ours
inner join run_samples as theirs on theirs.sample_id = ours.sample_id and theirs.run_id = $base
inner join samples as now on now.sample_id = ours.sample_id and now.input_hash = ours.input_hash
inner join samples as was on was.sample_id = theirs.sample_id and was.input_hash = theirs.input_hash
where ours.run_id = $candidate and ours.ordinal > $after
order by ours.ordinal
limit $most
