select keyword_name from duckdb_keywords() where keyword_category = 'reserved'
union
-- DuckDB counts these among the words that may also be names, and no query does without them.
select unnest([
    'between', 'by', 'cross', 'exists', 'explain', 'filter', 'first', 'full', 'if', 'inner', 'is', 'join', 'last',
    'left', 'like', 'natural', 'nulls', 'over', 'partition', 'pivot', 'positional', 'recursive', 'right', 'rows',
    'set', 'values', 'with'
])
order by 1
