-- Operators have names that are not words, and DuckDB's own begin with an underscore.
select distinct function_name
from duckdb_functions()
where function_type in ('scalar', 'aggregate', 'macro') and regexp_full_match(function_name, '[a-z]\w*')
order by 1
