-- One row per model of a run that the server identified.
select distinct model
from served_models
where run_id = $run_id and identity is not null
