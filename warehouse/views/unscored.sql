-- One row per score that is missing, with what is known of the cause.
create or replace view unscored as
with missing as (
    select run_id, sample_id, metric, unscored_reason as reason, detail
    from scores
    where value is null
),

-- A metric may rest on several steps that failed alike; their details are joined.
causes as (
    select
        outcomes.run_id,
        outcomes.sample_id,
        metric_steps.metric,
        outcomes.reason,
        list(outcomes.step order by outcomes.step) as steps,
        string_agg(distinct outcomes.detail, '; ' order by outcomes.detail) as detail
    from outcomes
    inner join metric_steps on metric_steps.step = outcomes.step and not metric_steps.optional
    where outcomes.reason is not null
    group by all
),

-- A step that rests on statements has no separate reason where splitting failed.
splittings as (
    select run_id, sample_id, reason, string_agg(distinct detail, '; ' order by detail) as detail
    from outcomes
    where step in ('extract_answer', 'extract_ground_truth') and detail is not null
    group by all
)

select
    missing.run_id,
    missing.sample_id,
    missing.metric,
    missing.reason,
    causes.steps,
    coalesce(missing.detail, causes.detail, splittings.detail) as detail
from missing
left join causes
    on causes.run_id = missing.run_id
    and causes.sample_id = missing.sample_id
    and causes.metric = missing.metric
    and causes.reason = missing.reason
left join splittings
    on splittings.run_id = missing.run_id
    and splittings.sample_id = missing.sample_id
    and splittings.reason = missing.reason;

comment on view unscored is 'One row per score that is missing.';
comment on column unscored.run_id is 'Run.';
comment on column unscored.sample_id is 'Sample.';
comment on column unscored.metric is 'Metric.';
comment on column unscored.reason is 'Why, one of unscored_reasons.';
comment on column unscored.steps is 'Steps that ended with this reason; NULL when none did: the run stopped before them, or all have their verdicts and there is nothing to take a share of.';
comment on column unscored.detail is 'What happened in those steps, in the splitting that they rest on, or in the metric''s Python function, in words; NULL when nothing more is known.';
