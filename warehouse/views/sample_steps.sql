-- One row per sample of a run and step: why the step has no verdicts there, NULL when it has them.
create or replace view sample_steps as
with steps (step) as (
    values
        -- The steps of warehouse/steps.toml, and the rubrics that metric files name.
        $steps
),

recorded as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        steps.step,
        outcomes.step is not null as is_recorded,
        case when outcomes.step is null then 'cancelled' else outcomes.reason end as reason,
        outcomes.detail
    from run_samples
    cross join steps
    left join outcomes
        on outcomes.run_id = run_samples.run_id
        and outcomes.sample_id = run_samples.sample_id
        and outcomes.step = steps.step
)

select
    recorded.run_id,
    recorded.sample_id,
    recorded.step,
    recorded.is_recorded,
    recorded.reason,
    -- A reason that is not on the list must still leave the score missing, so it comes last instead of vanishing.
    case when recorded.reason is not null then coalesce(unscored_reasons.precedence, 99) end as precedence,
    recorded.detail
from recorded
left join unscored_reasons on unscored_reasons.reason = recorded.reason;

comment on view sample_steps is 'One row per sample of a run and step: how the step ended there.';
comment on column sample_steps.run_id is 'Run.';
comment on column sample_steps.sample_id is 'Sample.';
comment on column sample_steps.step is 'Step that gives verdicts: $names, or grade_ and a built-in rubric.';
comment on column sample_steps.is_recorded is 'True when the step left an outcome; false when the run stopped before it or never asked for it.';
comment on column sample_steps.reason is 'Why verdicts are missing, one of unscored_reasons; NULL when there are some.';
comment on column sample_steps.precedence is 'Rank of the reason among several, the lowest is given; NULL without a reason.';
comment on column sample_steps.detail is 'What happened, in words; NULL when nothing more is known.';
