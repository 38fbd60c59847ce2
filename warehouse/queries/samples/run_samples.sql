insert into run_samples by name
select
    $run_id as run_id, ids.sample_id, ids.input_hash, ids.ordinal,
    -- {} says "none this time", for NULL says "as in samples".
    case
        when staged.metadata is distinct from samples.metadata::varchar then coalesce(staged.metadata, '{}')::json
    end as metadata
from staged_ids as ids
join read_parquet($parts) as staged using (ordinal)
join samples on samples.sample_id = ids.sample_id and samples.input_hash = ids.input_hash
order by ids.ordinal
