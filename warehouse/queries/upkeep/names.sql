-- One row per table and view of a warehouse, whoever made it.
select table_name from duckdb_tables() where not internal and database_name = current_database()
union all
select view_name from duckdb_views() where not internal and database_name = current_database()
order by 1
