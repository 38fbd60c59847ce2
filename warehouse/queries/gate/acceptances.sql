select run_id, why, accepted_by, accepted_at
from gate_acceptances
where run_id = $run_id
order by accepted_at
