-- Which model a server of one's own had under a name during a run, for another one may bear the name tomorrow.

-- One row per run and model that a server of one's own serves, where the server says what that is.
create table served_models (
    run_id          varchar not null,
    judge           varchar not null,
    endpoint        varchar not null,
    model           varchar not null,
    identity        varchar,
    context_window  bigint,
    noted_at        timestamp not null
);

comment on table served_models is 'One row per run and model that a server of one''s own serves, where the server says what that is.';
comment on column served_models.run_id is 'Run.';
comment on column served_models.judge is 'Judge, as `--judge` names it.';
comment on column served_models.endpoint is 'Address of the server.';
comment on column served_models.model is 'Name that the model is asked for by.';
comment on column served_models.identity is 'What the server says of the model behind the name, such as its digest, file or sizes; NULL when it says nothing.';
comment on column served_models.context_window is 'Tokens that the server has room for in one request and its reply; NULL when it does not say.';
comment on column served_models.noted_at is 'When this was noted, UTC.';
