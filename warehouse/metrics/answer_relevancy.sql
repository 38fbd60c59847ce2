-- metric: answer_relevancy
-- version: 1
-- needs: relevancy
-- meaning: How well the answer fits the question that was asked
-- One row per sample of the run: the mean cosine between the question and the questions regenerated from the answer;
-- 0 when the answer is non-committal.
with steps as (
    select run_id, sample_id, reason
    from sample_steps
    where step = 'relevancy'
),

committed as (
    select run_id, sample_id, rating = 0 as is_committed
    from grades
    where rubric = 'relevancy' and criterion = 'noncommittal'
),

compared as (
    select run_id, sample_id, avg(least(greatest(value, 0), 1)) as cosine
    from similarities
    where kind = 'regenerated_question'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then if(is_committed, cosine, 0) end as value,
    case when value is null then coalesce(reason, 'embedding_failed') end as unscored_reason
from steps
left join committed using (run_id, sample_id)
left join compared using (run_id, sample_id)
where run_id = $run_id
