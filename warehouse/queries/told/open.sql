-- Those of the wanted runs of which a part is not stored.
select run_id
from wanted
anti join (from stored_runs where part = $part) using (run_id)
