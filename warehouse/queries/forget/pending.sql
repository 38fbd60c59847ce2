-- One row per forgetting that is not done: which runs are left.
select
    forgetting_id,
    any_value(rule) as words,
    any_value(sample_id) as sample_id,
    any_value(with_scores) as with_scores,
    any_value(decided_at) as decided_at,
    list(distinct run_id order by run_id) as run_ids
from forgotten
where forgotten_at is null
group by forgetting_id
order by forgetting_id
