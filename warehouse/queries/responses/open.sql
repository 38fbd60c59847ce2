-- Also those whose response came and was not yet taken into the run's samples when its process died.
select run_samples.ordinal
from run_samples
join samples using (sample_id, input_hash)
left join responses on responses.run_id = run_samples.run_id and responses.sample_id = run_samples.sample_id
where run_samples.run_id = $run_id and (
    responses.status is null
    or responses.status = 'failed'
    or responses.answer is distinct from samples.answer
    or responses.contexts is distinct from samples.contexts
    or responses.context_ids is distinct from samples.context_ids
)
order by run_samples.ordinal
