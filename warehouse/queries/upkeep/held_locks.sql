-- One row per advisory lock that a session of this PostgreSQL database holds, by its key.
select (classid::bigint << 32) | objid::bigint
from pg_locks
where locktype = 'advisory' and objsubid = 1 and granted
    and database = (select oid from pg_database where datname = current_database())
