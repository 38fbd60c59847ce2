select
    slice.ordinal,
    samples.* exclude (metadata, conversation)
        -- Of several accepted answers the one that counts, which the statements are from; metadata has all.
        replace (coalesce(counted.text, samples.ground_truth) as ground_truth),
    samples.conversation::varchar as conversation,
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata,
    coalesce(responses.thoughts, coalesce(run_samples.metadata, samples.metadata) ->> 'answer_thoughts') as thoughts
from slice
inner join run_samples
    on run_samples.run_id = $run_id
    and run_samples.sample_id = slice.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
left join similarities as counted
    on counted.run_id = $run_id
    and counted.sample_id = slice.sample_id
    and counted.kind = 'accepted_answer'
left join responses
    on responses.run_id = $run_id
    and responses.sample_id = slice.sample_id
order by slice.ordinal, slice.sample_id
