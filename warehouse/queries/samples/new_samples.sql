insert into samples by name
select
    input_hash, ids.sample_id, question, answer, ground_truth, contexts, context_ids, reference_context_ids,
    metadata::json as metadata, conversation::json as conversation
from read_parquet($parts) as staged
join (select ordinal, sample_id, input_hash from staged_ids anti join samples using (sample_id, input_hash)) as ids
    using (ordinal, input_hash)
