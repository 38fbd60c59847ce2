-- One row per version of a test set that a run made.
select set_hash
from testset_versions
where run_id = $run_id
