-- Requests that went to a provider in a batch, to be answered within a day.

-- One row per batch and change of it: when it was planned, sent, and over. Nothing is overwritten: the latest counts.
create table provider_batches (
    batch_id           varchar not null,
    run_id             varchar not null,
    judge              varchar not null,
    endpoint           varchar,
    status             varchar not null,
    provider_batch_id  varchar,
    provider_status    varchar,
    n_requests         bigint not null,
    noted_at           timestamp not null
);

comment on table provider_batches is 'One row per batch and change of it: when it was planned, sent, and over.';
comment on column provider_batches.batch_id is 'Batch, by the tag that it bears at the provider.';
comment on column provider_batches.run_id is 'Run that sent it.';
comment on column provider_batches.judge is 'Judge whose requests it holds.';
comment on column provider_batches.endpoint is 'Address it was sent to.';
comment on column provider_batches.status is 'planned: about to be sent; sent; over: all that comes of it was fetched; never_sent.';
comment on column provider_batches.provider_batch_id is 'The provider''s id of it; NULL as long as it is only planned.';
comment on column provider_batches.provider_status is 'The provider''s own word for how it is; NULL as long as it is only planned.';
comment on column provider_batches.n_requests is 'Requests in it.';
comment on column provider_batches.noted_at is 'When this was noted, UTC.';

-- One row per request in a batch.
create table batch_requests (
    batch_id      varchar not null,
    run_id        varchar not null,
    request_hash  varchar not null
);

comment on table batch_requests is 'One row per request in a batch, noted before the batch is sent.';
comment on column batch_requests.batch_id is 'Batch, as in provider_batches.';
comment on column batch_requests.run_id is 'Run that sent it.';
comment on column batch_requests.request_hash is 'Request, as in llm_calls; its first 32 characters are its custom_id.';

alter table llm_calls add column batch_id varchar;
comment on column llm_calls.batch_id is 'Batch in which the request was sent, at the batch''s price; NULL for one that was sent by itself.';
