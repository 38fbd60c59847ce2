-- One row per run: what is another whenever its scores are others.
select 'base' as side, count(*) as n, bit_xor(hash(sample_id, metric, value, metric_version)) as state
from scores
where run_id = $base
union all
select 'candidate', count(*), bit_xor(hash(sample_id, metric, value, metric_version))
from scores
where run_id = $candidate
union all
-- The noise runs of either series, on which floors rest.
select 'noise', count(*), bit_xor(hash(noise))
from noise
order by side
