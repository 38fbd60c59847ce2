select distinct event_id
from kb_updates
join runs using (run_id)
where kb_updates.kb_name = $kb_name and runs.suite = $suite
