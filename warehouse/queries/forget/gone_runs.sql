-- The runs that are forgotten whole, with all that is decided.
create or replace temp table gone_runs as
select distinct run_id
from forgotten
where sample_id is null
