-- One row per sample of a run whose texts were forgotten while its scores stayed.
create or replace view forgotten_samples as
select
    run_samples.run_id,
    run_samples.sample_id,
    min(forgotten.decided_at) as forgotten_at
from forgotten
inner join run_samples
    on run_samples.run_id = forgotten.run_id
    and run_samples.sample_id = coalesce(forgotten.sample_id, run_samples.sample_id)
where forgotten.table_name = 'run_samples'
group by run_samples.run_id, run_samples.sample_id;

comment on view forgotten_samples is 'One row per sample of a run whose texts were forgotten while its scores stayed.';
comment on column forgotten_samples.run_id is 'Run.';
comment on column forgotten_samples.sample_id is 'Sample.';
comment on column forgotten_samples.forgotten_at is 'When, UTC: the day in the marks of the texts.';
