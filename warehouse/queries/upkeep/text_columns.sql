-- One row per table of a file, with its schema: its columns of texts.
select
    format('"{}"."{}"', replace(schema_name, '"', '""'), replace(table_name, '"', '""')) as table_name,
    coalesce(
        list(column_name order by column_index) filter (data_type like '%VARCHAR%' or data_type like '%JSON%'), []
    ) as columns
from duckdb_columns()
semi join duckdb_tables() using (database_oid, schema_oid, table_oid)
where not internal and database_name = current_database()
group by all
order by table_name
