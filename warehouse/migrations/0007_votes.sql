-- One row per vote on an item: which statement or context was judged, the how manieth vote said what, and in which call.
-- `verdict` is the label, or the ranks of the supporting contexts as '1,3', 'none' where there are none; `agrees` says
-- whether the majority said just that. An item that was judged in parts of long texts has its votes once per part.
create table votes (
    run_id     varchar not null,
    sample_id  varchar not null,
    step       varchar not null,
    item_id    varchar not null,
    vote       integer not null,
    verdict    varchar not null,
    agrees     boolean not null,
    reason     varchar,
    call_id    varchar
);
