-- One row per model of a run of which the server said which one it is.
select distinct model
from served_models
where run_id = $run_id and identity is not null
