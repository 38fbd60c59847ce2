-- The rows of run_costs of those wanted runs whose costs are stored.
select *
from stored_costs
where run_id in (select run_id from wanted) and run_id in (select run_id from stored_runs where part = 'costs')
