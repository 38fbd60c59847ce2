-- The estimates are of the samples that both datasets have: to add harder questions makes no bot worse. The tables that the
-- estimate reads have these alone.
common as (
    select sample_id
    from (
        select run_id, sample_id from main.sample_picks where run_id in ($base, $candidate)
        union
        select run_id, sample_id from main.scores where run_id in ($base, $candidate)
    )
    group by sample_id
    having count(*) = 2
),

sample_picks as (
    from main.sample_picks
    where run_id in ($base, $candidate) and sample_id in (from common)
),

sample_signals as (
    from main.sample_signals
    where run_id in ($base, $candidate) and sample_id in (from common)
),

scores as (
    from main.scores
    where run_id in ($base, $candidate) and sample_id in (from common)
)
