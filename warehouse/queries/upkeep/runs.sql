-- One row per status that runs have.
select status, count(*) as n
from runs
group by status
order by status
