-- One row: the other columns of the sample's row in the dataset, the thoughts left out of its answer, and its ids:
-- reference ids, retrieved ids in rank order, what is wanted, and which of that each retrieved id matches.
select
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata,
    coalesce(responses.thoughts, coalesce(run_samples.metadata, samples.metadata) ->> 'answer_thoughts') as thoughts,
    samples.reference_context_ids,
    samples.context_ids,
    rankings.wanted_ids,
    rankings.matches
from run_samples
inner join samples using (sample_id, input_hash)
left join responses using (run_id, sample_id)
left join (from sample_rankings where run_id = $run_id and sample_id = $sample_id) as rankings using (run_id, sample_id)
where run_samples.run_id = $run_id and run_samples.sample_id = $sample_id
