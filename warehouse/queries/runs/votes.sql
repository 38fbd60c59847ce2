-- One row per step that was voted on.
select * exclude run_id
from vote_flips
where run_id = $run_id
order by step
