select
    metric,
    base.value as base,
    candidate.value as candidate,
    base.unscored_reason as base_reason,
    candidate.unscored_reason as candidate_reason,
    coalesce(candidate.better, base.better, 'high') as better
from (from scores where run_id = $base and sample_id = $sample_id) as base
full join (from scores where run_id = $candidate and sample_id = $sample_id) as candidate using (metric)
order by metric
