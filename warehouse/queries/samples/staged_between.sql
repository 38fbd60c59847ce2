select
    ordinal, ids.sample_id, input_hash, question, answer, ground_truth, contexts, context_ids, reference_context_ids,
    metadata as metadata_json, conversation as conversation_json
from read_parquet($parts) as staged
join read_parquet($ids) as ids using (ordinal)
where ordinal between $first and $last
order by ordinal
