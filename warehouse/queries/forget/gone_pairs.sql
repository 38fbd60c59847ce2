-- The samples that are forgotten by themselves.
create or replace temp table gone_pairs as
select distinct run_id, sample_id
from forgotten
where sample_id is not null
