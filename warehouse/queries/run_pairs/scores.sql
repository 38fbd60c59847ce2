with base as (select * from scores where run_id = $base),

candidate as (select * from scores where run_id = $candidate)

select
    metric,
    sample_id,
    base.value as base,
    candidate.value as candidate,
    base.metric_version as base_version,
    candidate.metric_version as candidate_version,
    base.unscored_reason as base_reason,
    candidate.unscored_reason as candidate_reason,
    coalesce(candidate.better, base.better, 'high') as better
from base
full join candidate using (metric, sample_id)
