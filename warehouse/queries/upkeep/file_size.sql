-- One row per table of a file: the bytes of the blocks of its segments, of shared blocks its part.
with segments as ({segments}),

blocks as (
    select distinct table_name, unnest(list_concat([block_id], additional_block_ids)) as block_id
    from segments
),

shared as (
    select table_name, 1 / count(*) over (partition by block_id) as part
    from blocks
    where block_id >= 0
)

select table_name, sum(part) * any_value(sizes.block_size) as bytes
from shared
cross join (select block_size from pragma_database_size() where database_name = current_database()) as sizes
group by table_name
