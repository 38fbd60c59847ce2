-- metric: {metric}
-- version: 1
-- needs: grade_{rubric}
{further}-- One row per sample of the run: the judge's rating of {criterion} by the rubric {rubric}, changed where a
-- rule of the rubric requires it, divided by the highest rating of the scale.

with steps as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        case when outcomes.step is null then 'cancelled' else outcomes.reason end as reason
    from run_samples
    left join outcomes
        on outcomes.run_id = run_samples.run_id
        and outcomes.sample_id = run_samples.sample_id
        and outcomes.step = 'grade_{rubric}'
),

rated as (
    select run_id, sample_id, rating / scale_max as share
    from grades
    where rubric = '{rubric}' and criterion = '{criterion}'
)

select
    run_id,
    sample_id,
    case when reason is null then share end as value,
    case when value is null then coalesce(reason, 'judge_failed') end as unscored_reason
from steps
left join rated using (run_id, sample_id)
where run_id = $run_id
