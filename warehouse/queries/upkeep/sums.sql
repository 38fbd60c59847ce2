-- One row per run of a part of a table: how many rows it has there, the sum of their hashes, and the bytes of their texts.
select
    {run} as run,
    count(*) as n_rows,
    sum(hash(row({shown}))::hugeint)::varchar as digest,
    sum({size})::bigint as n_bytes
from {table}
where $window
group by run
