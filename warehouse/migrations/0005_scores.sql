-- One row per sample and metric of a run.
create table scores (
    run_id           varchar not null,
    sample_id        varchar not null,
    metric           varchar not null,
    value            double,
    unscored_reason  varchar,
    metric_version   varchar not null
);
