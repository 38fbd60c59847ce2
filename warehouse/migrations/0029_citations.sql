-- What answers cite: each mark, the statement of the answer that it closes, and the context that it names.

-- One row per citation in an answer, statement it belongs to and context it names.
create table citations (
    run_id        varchar not null,
    sample_id     varchar not null,
    ordinal       integer not null,
    marker        varchar not null,
    text_start    integer not null,
    text_end      integer not null,
    statement_id  varchar,
    context_rank  integer,
    call_id       varchar
);

comment on table citations is 'One row per citation in an answer, statement it belongs to and context it names: most have one of each.';
comment on column citations.run_id is 'Run.';
comment on column citations.sample_id is 'Sample.';
comment on column citations.ordinal is 'Place of the citation among those of the answer, from 1; a mark with several numbers makes several.';
comment on column citations.marker is 'The mark as it is written, such as [1], [2, 3] or an address.';
comment on column citations.text_start is 'Where in the answer the mark begins, in characters from 0.';
comment on column citations.text_end is 'The first character after it.';
comment on column citations.statement_id is 'Statement of the answer that it belongs to, A1, A2, …; NULL when no statement was split from its sentence, or none were asked for.';
comment on column citations.context_rank is 'Rank, from 1, of the context that it names; NULL when it names nothing that was retrieved.';
comment on column citations.call_id is 'Always NULL: no judge is asked what an answer cites.';
