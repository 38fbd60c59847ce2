-- One row per sample, rubric and criterion, and per total that follows from them. `rating` is what the rules made of
-- what the judge `said`; `rule` tells which one changed it.
create table grades (
    run_id     varchar not null,
    sample_id  varchar not null,
    rubric     varchar not null,
    criterion  varchar not null,
    rating     double not null,
    scale_min  double not null,
    scale_max  double not null,
    said       double,
    rule       varchar,
    reason     varchar,
    call_id    varchar
);

-- A similarity may be that of a text a judge has written, which is kept with the call it came from.
alter table similarities add column text varchar;
alter table similarities add column call_id varchar;
