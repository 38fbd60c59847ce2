-- One row: how many rows a table has, and the sum of their hashes.
select count(*) as n_rows, sum(hash(row({shown}))::hugeint)::varchar as digest
from {table}
