-- One row when texts of a run were forgotten: since when, whether of all its samples, and of how many.
select
    min(decided_at) as forgotten_at,
    bool_or(sample_id is null) as is_whole,
    count(distinct sample_id) as n_samples
from forgotten
where run_id = $run_id
having count(*) > 0
