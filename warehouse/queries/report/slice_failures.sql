select outcomes.sample_id, outcomes.step, outcomes.reason, outcomes.detail
from slice
inner join outcomes on outcomes.sample_id = slice.sample_id
where outcomes.run_id = $run_id and outcomes.reason is not null
order by slice.ordinal, outcomes.step
