-- One row per run of `here` with rows that hold texts: how many, and how many bytes.
select run_id, count(*) as n_rows, sum({n_bytes})::bigint as n_bytes
from {table}
where run_id in (select run_id from here) and ($sample_id is null or {sample} = $sample_id) and {holds}
group by run_id
