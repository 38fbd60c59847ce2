-- The columns of all tables, each with its type.
select columns.table_name, columns.column_name, columns.data_type
from duckdb_columns() as columns
inner join duckdb_tables() as tables
    using (database_name, schema_name, table_name)
where columns.database_name = current_database() and columns.schema_name = 'main'
order by columns.table_name, columns.column_index
