-- One row per sample that either of two runs could pick: whether both treated it alike, by the same probability.
select
    coalesce(
        base.picked = candidate.picked and abs(base.probability - candidate.probability) < 1e-12, false
    ) as is_alike
from (from sample_picks where run_id = $base) as base
full join (from sample_picks where run_id = $candidate) as candidate using (sample_id)
