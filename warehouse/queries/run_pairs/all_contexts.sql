with placed as (
    select
        run_samples.run_id,
        sample_id,
        samples.contexts,
        samples.context_ids,
        unnest(range(1, len(samples.contexts) + 1)) as context_rank
    from run_samples
    inner join samples using (sample_id, input_hash)
    where run_samples.run_id in ($base, $candidate) and sample_id = $sample_id
),

judged as (
    select run_id, context_rank, useful, reason
    from context_verdicts
    where run_id in ($base, $candidate) and sample_id = $sample_id
)

select
    sample_id,
    run_id = $candidate as of_candidate,
    contexts[context_rank] as text,
    context_ids[context_rank] as context_id,
    context_rank::bigint as context_rank,
    useful,
    reason
from placed
left join judged using (run_id, context_rank)
order by of_candidate, context_rank
