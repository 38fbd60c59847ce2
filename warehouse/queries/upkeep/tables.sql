select table_name, list(column_name order by column_name) as columns
from duckdb_columns()
where not internal and database_name = current_database() and schema_name = 'main'
    and table_name in (select table_name from duckdb_tables() where database_name = current_database())
    -- Each side has its own record of how its tables were made, and of what follows from the others.
    and table_name <> 'migrations'
    and not starts_with(table_name, 'stored_')
group by table_name
order by table_name
