-- One row per table of a lake: the bytes of its files.
select table_name, (coalesce(file_size_bytes, 0) + coalesce(delete_file_size_bytes, 0))::double as bytes
from ducklake_table_info('{lake}')
