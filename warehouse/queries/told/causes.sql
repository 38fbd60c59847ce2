-- The rows of sample_causes of those wanted runs whose causes are stored.
select run_id, cause
from stored_causes
where run_id in (select run_id from wanted) and run_id in (select run_id from stored_runs where part = 'causes')
