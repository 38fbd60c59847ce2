-- One row per metric and independent part of the difference between two runs of which one judged a part of its dataset. Over
-- the parts of a metric the squares of `term` add up to the variance of its difference (`run_pairs/sampled.sql`).
--
-- First what not judging all leaves open: a part is a sample where both picked the same samples by the same probabilities,
-- else a sample of one run. Then what a comparison of whole runs has as well: the samples stand for others, and bot and
-- judge waver, so that scores move without a cause. A part is the move of a sample that both scored, weighted as it was
-- probable to be in both; of fewer than six, whose moves agree by chance, the score of a sample in each run. These have
-- their `weight`, by which `group_terms` in Python joins the ones of samples that waver together.
with open_runs as (
    select unnest([$base, $candidate]) as run_id
),

$common_tables,

terms as (
    from ($sampled_terms)
),

picks as (
    select coalesce(bool_and(is_alike), false) as is_paired
    from ($sampled_picks)
),

scored as (
    select scores.run_id, scores.metric, sample_id, scores.value, 1 / coalesce(sample_picks.probability, 1) as weight
    from scores
    left join sample_picks using (run_id, sample_id)
    where scores.value is not null
),

moves as (
    select
        metric,
        sample_id,
        candidate.value - base.value as value,
        base.weight * if(picks.is_paired, 1, candidate.weight) as weight
    from (from scored where run_id = $base) as base
    inner join (from scored where run_id = $candidate) as candidate using (metric, sample_id)
    cross join picks
    qualify count(*) over (partition by metric) >= 6
),

drawn as (
    select 'moves' as side, metric, sample_id, value, weight
    from moves
    union all
    select run_id || ' scores', metric, sample_id, value, weight
    from scored
    where metric not in (select metric from moves)
)

select
    metric,
    if(picks.is_paired, '', run_id) as side,
    sample_id,
    -- NULL where a run judged too few
    case when count(term) = count(*) then sum(if(run_id = $candidate, term, -term)) end as term,
    null as weight
from terms
cross join picks
group by all
union all
select
    metric,
    side,
    sample_id,
    sqrt(weight) * (value - sum(weight * value) over of_side / sum(weight) over of_side) / sum(weight) over of_side
        * sqrt(count(*) over of_side / greatest(count(*) over of_side - 1, 1)),
    weight
from drawn
window of_side as (partition by metric, side)
order by all
