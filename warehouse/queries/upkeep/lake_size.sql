-- One row: the number and the bytes of all files of a lake.
select
    coalesce(sum(file_count + delete_file_count), 0)::bigint as files,
    coalesce(sum(file_size_bytes + delete_file_size_bytes), 0)::bigint as bytes
from ducklake_table_info('{lake}')
