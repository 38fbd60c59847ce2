-- Put on record that a part of the runs in open_runs is stored.
insert into stored_parts by name
select open_runs.run_id, stored_rules.part, stored_rules.rules, now() at time zone 'UTC' as stored_at
from open_runs
cross join stored_rules
where stored_rules.part = $part
