with base as (select * from scores where run_id = $base),

candidate as (select * from scores where run_id = $candidate)

select
    metric,
    sample_id,
    base.value as base,
    candidate.value as candidate,
    base.metric_version as base_version,
    candidate.metric_version as candidate_version,
    candidate.unscored_reason as candidate_reason,
    base_failures.reason as base_failure,
    candidate_failures.reason as candidate_failure,
    coalesce(candidate.better, base.better, 'high') as better
from base
full join candidate using (metric, sample_id)
left join unscored_reasons as base_failures
    on base_failures.reason = base.unscored_reason and base_failures.is_failure
left join unscored_reasons as candidate_failures
    on candidate_failures.reason = candidate.unscored_reason and candidate_failures.is_failure
