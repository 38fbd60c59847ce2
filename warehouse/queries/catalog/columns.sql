select table_name, column_name, data_type, comment
from duckdb_columns()
where not internal
order by table_name, column_index
