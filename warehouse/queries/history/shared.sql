-- One row per run and metric of score_chain that has a run before: over the samples that both runs scored the mean less
-- that of the run before, and how many they are.
select
    score_chain.run_id,
    score_chain.metric,
    count(*) as n_shared,
    avg(later.value) - avg(earlier.value) as change
from score_chain
inner join scores as later
    on later.run_id = score_chain.run_id
    and later.metric = score_chain.metric
inner join scores as earlier
    on earlier.run_id = score_chain.previous_run_id
    and earlier.metric = score_chain.metric
    and earlier.sample_id = later.sample_id
where later.value is not null and earlier.value is not null
    -- A plain mean over samples that were picked with unequal probabilities says nothing of the others.
    and later.run_id not in (select run_id from sample_picks)
    and earlier.run_id not in (select run_id from sample_picks)
group by score_chain.run_id, score_chain.metric
