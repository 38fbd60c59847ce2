with base as (select sample_id, ordinal from run_samples where run_id = $base),

candidate as (select sample_id, ordinal from run_samples where run_id = $candidate)

select sample_id, base.sample_id is not null as in_base, candidate.sample_id is not null as in_candidate
from base
full join candidate using (sample_id)
order by candidate.ordinal nulls last, base.ordinal
