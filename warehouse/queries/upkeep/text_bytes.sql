-- One row per so many rows of a table as DuckDB reads at once: the first and last rowid, the rows, the bytes of texts.
select min(rowid), max(rowid), count(*), sum({size})::bigint
from {table}
where rowid >= 0  -- as in views/sample_rankings.sql
group by rowid // {rows}
order by min(rowid)
