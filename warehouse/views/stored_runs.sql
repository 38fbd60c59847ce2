-- One row per run and part of what is told of it that is stored and up to date: by the rules of today, from the very rows
-- that are on record.
create or replace view stored_runs as
select run_id, part
from stored_parts
where (part, rules) in (select (part, rules) from stored_rules);

comment on view stored_runs is 'One row per run and part of what is told of it that is stored and up to date; views compute the others.';
comment on column stored_runs.run_id is 'Run.';
comment on column stored_runs.part is 'scores (read by run_scores), causes (sample_causes, run_causes) or costs (run_costs).';
