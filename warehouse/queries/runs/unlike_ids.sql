-- One row of a run whose ids never match: a reference id and a retrieved id, as the dataset and the retriever write them.
select samples.reference_context_ids[1] as reference_id, samples.context_ids[1] as context_id
from run_samples
inner join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id and len(samples.reference_context_ids) > 0 and len(samples.context_ids) > 0
order by run_samples.ordinal
limit 1
