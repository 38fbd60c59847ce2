-- One row per vote on an item: which statement or context was judged, the how manieth vote said what, and in which call.
create table votes (
    run_id     varchar not null,
    sample_id  varchar not null,
    step       varchar not null,
    item_id    varchar not null,
    vote       integer not null,
    verdict    varchar not null,
    reason     varchar,
    call_id    varchar
);
