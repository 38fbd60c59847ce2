-- One row per metric and sample of both runs that has a score in each: the mean over the scores of all answers to it, those
-- of the rounds too, and how many these are.
with rounds as (
    select run_id as of_run_id, run_id as round_id
    from runs
    where run_id in ($base, $candidate)
    union all
    select parent_run_id as of_run_id, run_id as round_id
    from runs
    where kind = 'repeats' and status in ('completed', 'incomplete') and parent_run_id in ($base, $candidate)
),

means as (
    select
        rounds.of_run_id, scores.metric, scores.metric_version, scores.sample_id, avg(scores.value) as value,
        count(*) as n, any_value(coalesce(scores.better, 'high')) as better
    from (from scores where value is not null and run_id in (select round_id from rounds)) as scores
    inner join rounds on rounds.round_id = scores.run_id
    group by rounds.of_run_id, scores.metric, scores.metric_version, scores.sample_id
)

select
    metric, sample_id, base.value as base, candidate.value as candidate, base.n as n_base, candidate.n as n_candidate,
    candidate.better
from (from means where of_run_id = $base) as base
inner join (from means where of_run_id = $candidate) as candidate using (metric, metric_version, sample_id)
order by metric, sample_id
