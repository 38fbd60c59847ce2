-- One row per table, view and macro.
select 'table ' || schema_name || '.' || table_name as name from duckdb_tables() where not internal and database_name = current_database()
union
select 'view ' || schema_name || '.' || view_name from duckdb_views() where not internal and database_name = current_database()
union
select 'macro ' || schema_name || '.' || function_name
from duckdb_functions()
where not internal and function_type in ('macro', 'table_macro') and database_name = current_database()
order by name
