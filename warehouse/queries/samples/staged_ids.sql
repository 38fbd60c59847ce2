-- Only ids are numbered and kept in between: the texts stream from the Parquet parts to their table, so that a dataset
-- of any size needs the same memory. The parts are in file order, and DuckDB keeps the order of what it scans.
create temp table staged_ids as
select
    ordinal, input_hash,
    -- Samples without an id that repeat a question and ground truth are numbered in file order.
    case
        when given then own_id
        when repetition = 1 then own_id
        else own_id || '-' || repetition
    end as sample_id
from (
    select
        ordinal, input_hash, given_id is not null as given, coalesce(given_id, sample_id) as own_id,
        row_number() over (partition by given_id is null, sample_id order by ordinal) as repetition
    from read_parquet($parts)
)
