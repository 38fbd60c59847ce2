-- One row per table, with its name as SQL has it: users may have schemas and names of all kinds.
select
    if(schema_name = 'main', table_name, schema_name || '.' || table_name) as table_name,
    format('"{}"."{}"', replace(schema_name, '"', '""'), replace(table_name, '"', '""')) as quoted
from duckdb_tables()
where not internal and database_name = current_database()
order by all
