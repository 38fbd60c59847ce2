-- One row per sample and run of two whose ground truth states nothing, or that a test set marks as unanswerable: the bot
-- should refuse, and no score is lost where it does. `is_refused` if the answer states nothing either, or is non-committal
-- where no metric needs its statements.
with stating as (
    select
        run_id,
        sample_id,
        bool_or(source = 'answer') as has_answer,
        bool_or(source = 'ground_truth') as has_ground_truth
    from statements
    where run_id in ($base, $candidate)
    group by run_id, sample_id
),

split as (
    select
        run_id,
        sample_id,
        bool_or(step = 'extract_answer') as is_answer_split,
        bool_or(step = 'extract_ground_truth') as is_ground_truth_split
    from outcomes
    where run_id in ($base, $candidate)
        and reason is null
        and step in ('extract_answer', 'extract_ground_truth')
    group by run_id, sample_id
),

noncommittal as (
    select run_id, sample_id
    from grades
    where run_id in ($base, $candidate) and rubric = 'relevancy' and criterion = 'noncommittal' and rating = 1
)

select
    run_id,
    sample_id,
    if(coalesce(is_answer_split, false), not coalesce(has_answer, false), noncommittal.run_id is not null) as is_refused
from run_samples
left join split using (run_id, sample_id)
left join noncommittal using (run_id, sample_id)
left join samples using (sample_id, input_hash)
left join stating using (run_id, sample_id)
where run_id in ($base, $candidate)
    and not coalesce(has_ground_truth, false)
    and (
        coalesce(is_ground_truth_split, false)
        or samples.ground_truth is null
        and (
            json_extract_string(coalesce(run_samples.metadata, samples.metadata), '$.kind') = 'unanswerable'
            or lower(trim(json_extract_string(coalesce(run_samples.metadata, samples.metadata), '$.answerable')))
            in ('false', 'no', '0')
        )
    )
