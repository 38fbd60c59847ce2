-- One row per sample that was judged in both runs: the cause of its answer's problem in each, `fine` without one.
with base as (select sample_id, cause from sample_causes where run_id = $base),

candidate as (select sample_id, cause from sample_causes where run_id = $candidate)

select sample_id, base.cause as base, candidate.cause as candidate
from base
inner join candidate using (sample_id)
where base.cause <> 'not_judged' and candidate.cause <> 'not_judged'
