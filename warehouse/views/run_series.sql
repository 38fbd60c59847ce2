-- One row per run that is an evaluation: the series it belongs to, within which runs are compared in time order.
create or replace view run_series as
select
    run_id,
    case when suite is not null then 'suite ' || concat_ws('/', suite, variant) else 'dataset ' || coalesce(dataset, '') end as series,
    suite,
    variant,
    dataset,
    judge,
    embeddings,
    language,
    -- A setting; runs from before there was a choice have none.
    coalesce(config ->> '$.plan', 'separate') as plan,
    label,
    tags,
    status,
    started_at,
    -- A limit of the suite's file is for all nights, and one beyond the dataset limits nothing.
    nullif(
        concat_ws(
            '/',
            case
                when (config ->> '$.file_limits[0]') is distinct from (config ->> '$.limit')
                    or (config ->> '$.file_limits[1]') is distinct from (config ->> '$.sample_budget')
                    then concat_ws(
                        '/',
                        case when (config ->> '$.limit')::bigint <= n_samples then config ->> '$.limit' end,
                        config ->> '$.sample_budget'
                    )
            end,
            config ->> '$.answers_of'
        ),
        ''
    ) as part
from runs
where kind = 'evaluation';

comment on view run_series is 'One row per evaluation: the series within which it is compared with earlier runs.';
comment on column run_series.run_id is 'Run.';
comment on column run_series.series is 'Runs of one suite or of one of its variants, or, without a suite, of one dataset.';
comment on column run_series.suite is 'Suite; NULL for a run outside a suite.';
comment on column run_series.variant is 'Variant of the suite; NULL for the suite itself and outside a suite.';
comment on column run_series.dataset is 'Dataset; NULL when it was not named.';
comment on column run_series.judge is 'Judge.';
comment on column run_series.embeddings is 'Embedding model; NULL when none was used.';
comment on column run_series.language is 'Language of the prompts; NULL when not known.';
comment on column run_series.plan is 'How the judge was asked: separate (each step by itself) or fused (classify, attribute and rank in one request).';
comment on column run_series.label is 'Label; NULL when it has none.';
comment on column run_series.tags is 'Tags.';
comment on column run_series.status is 'running, completed, incomplete, failed or cancelled.';
comment on column run_series.started_at is 'Start of the run, UTC.';
comment on column run_series.part is 'Number of samples that it was limited to (limit, sample budget) by an option, and the other suite or dataset that it has the answers of; NULL without either, and for the limits of its suite file.';
