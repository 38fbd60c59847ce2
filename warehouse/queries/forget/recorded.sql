-- One row per table of a forgetting: how many rows and bytes of texts were recorded to go.
with of_run as (
    select run_id, table_name, max(n_rows) as n_rows, max(n_bytes) as n_bytes
    from forgotten
    where forgetting_id = $forgetting_id
    group by all
)

select table_name, sum(n_rows)::bigint as n_rows, sum(n_bytes)::bigint as n_bytes
from of_run
group by table_name
order by table_name
