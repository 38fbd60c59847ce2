-- One row per table.
select table_name
from duckdb_tables()
where not internal and database_name = current_database()
order by table_name
