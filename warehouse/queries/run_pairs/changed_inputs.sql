-- Equal hashes are equal texts; metadata stands beside the hash, and is NULL in run_samples where it is that of samples.
with pairs as (
    select
        sample_id,
        base.input_hash as base_hash,
        candidate.input_hash as candidate_hash,
        base.metadata as base_metadata,
        candidate.metadata as candidate_metadata
    from run_samples as base
    inner join run_samples as candidate using (sample_id)
    where base.run_id = $base and candidate.run_id = $candidate
        and (
            base.input_hash <> candidate.input_hash
            or base.metadata is not null
            or candidate.metadata is not null
        )
),

texts as (
    select
        pairs.sample_id,
        base.question is distinct from candidate.question as question,
        base.answer is distinct from candidate.answer as answer,
        base.ground_truth is distinct from candidate.ground_truth as ground_truth,
        base.contexts is distinct from candidate.contexts as contexts,
        base.answer is distinct from candidate.answer
            and (base.contexts is null or candidate.contexts is null) as answer_as_contexts,
        base.context_ids is distinct from candidate.context_ids as context_ids,
        base.reference_context_ids is distinct from candidate.reference_context_ids as reference_context_ids,
        coalesce(pairs.base_metadata, base.metadata) as base_metadata,
        coalesce(pairs.candidate_metadata, candidate.metadata) as candidate_metadata
    from pairs
    inner join samples as base on base.sample_id = pairs.sample_id and base.input_hash = pairs.base_hash
    inner join samples as candidate
        on candidate.sample_id = pairs.sample_id
        and candidate.input_hash = pairs.candidate_hash
)

select * exclude (base_metadata, candidate_metadata), {further}
from texts
