-- What reviewed verdicts are about. Of several accepted answers ground_truth is the one that counts, accepted has all, one
-- a line.
select
    sample_id,
    samples.question,
    samples.answer,
    coalesce(counted.text, samples.ground_truth) as ground_truth,
    samples.metadata ->> '$.ground_truths[*]' as listed,
    if(list_contains(listed, samples.ground_truth), array_to_string(listed, chr(10)), samples.ground_truth) as accepted,
    samples.contexts,
    samples.conversation::varchar as conversation
from wanted
inner join run_samples using (sample_id)
inner join samples using (sample_id, input_hash)
left join similarities as counted
    on counted.run_id = run_samples.run_id
    and counted.sample_id = run_samples.sample_id
    and counted.kind = 'accepted_answer'
where run_samples.run_id = $run_id
