-- The samples of the datasets of two runs, judged or not, and how many are in both.
with datasets as (
    select run_id, sample_id from run_samples where run_id in ($base, $candidate)
    union
    select run_id, sample_id from sample_picks where run_id in ($base, $candidate)
)

select
    count(*) filter (where in_base) as n_base,
    count(*) filter (where in_candidate) as n_candidate,
    count(*) filter (where in_base and in_candidate) as n_common
from (
    select bool_or(run_id = $base) as in_base, bool_or(run_id = $candidate) as in_candidate
    from datasets
    group by sample_id
)
