-- What a warehouse lacks that was last written by an evalhouse which knew no acceptance of a run.
create temp view gate_acceptances as
select null::varchar as run_id, null::varchar as why, null::varchar as accepted_by, null::timestamp as accepted_at
where false
