-- One row per run of a table: how many rows it has there, and the sum of their hashes.
select
    {run} as run,
    count(*) as n_rows,
    sum(hash(row({shown}))::hugeint)::varchar as digest
from {table}
group by run
