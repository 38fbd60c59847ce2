select table_name, 'table' as kind, comment from duckdb_tables() where not internal
union all
select view_name, 'view' as kind, comment from duckdb_views() where not internal
order by kind, table_name
