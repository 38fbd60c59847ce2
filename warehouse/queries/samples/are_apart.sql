-- One row: whether row groups of `samples` were kept apart, because their texts are long. DuckDB merges others until at
-- most the last one has fewer rows than a vector, 2,048.
select count(*) > 1
from (
    select row_group_id
    from pragma_storage_info('samples')
    where column_name = 'sample_id' and segment_type = 'VARCHAR'
    group by row_group_id
    having sum(count) < 2048
)
