-- The record of what was done to a warehouse's tables: one row per migration.
create table if not exists migrations (
    number      integer not null,
    name        varchar not null,
    sha256      varchar not null,
    applied_at  timestamp not null
)
