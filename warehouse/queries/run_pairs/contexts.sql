with of_pair as (
    select * from context_verdicts where run_id = $base
    union all
    select * from context_verdicts where run_id = $candidate
),

placed as (
    select run_id, sample_id, input_hash
    from run_samples
    inner join wanted using (sample_id)
    where run_id in ($base, $candidate)
)

select
    sample_id, run_id = $candidate as of_candidate, samples.contexts[context_rank] as text, context_rank, useful, reason
from of_pair
inner join placed using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
order by sample_id, of_candidate, context_rank
