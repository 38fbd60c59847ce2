-- One row per metric and independent part of the difference between two runs of which one judged a part of its dataset: a
-- sample where both picked the same samples by the same probabilities, else a sample of one run. Over the parts of a
-- metric the squares of `term` add up to the variance of its difference (`run_pairs/sampled.sql`).
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
)

select
    metric,
    if(picks.is_paired, '', run_id) as side,
    sample_id,
    sum(if(run_id = $candidate, term, -term)) as term
from terms
cross join picks
group by all
order by all
