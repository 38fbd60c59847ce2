-- One row when a run of this id was forgotten with all its rows.
select run_id, min(decided_at) as forgotten_at, any_value(forgotten_by) as forgotten_by
from forgotten
where run_id = $run_id and with_scores and sample_id is null
group by run_id
