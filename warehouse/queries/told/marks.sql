-- One row per wanted run and part: when it was stored; NULL where it is not, or no longer true.
select wanted.run_id, parts.part, stored_parts.stored_at
from wanted
cross join (select unnest(['scores', 'costs']) as part) as parts
left join (from stored_parts semi join stored_runs using (run_id, part)) as stored_parts
    on stored_parts.run_id = wanted.run_id
    and stored_parts.part = parts.part
order by wanted.run_id, parts.part
