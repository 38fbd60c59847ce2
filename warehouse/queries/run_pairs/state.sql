-- One row per run and what else a comparison rests on: values that change whenever one of their rows does.
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
union all
select 'reviews', count(*), bit_xor(hash(reviews))
from reviews
order by side
