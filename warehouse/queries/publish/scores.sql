-- One row per score of a run in the chosen metrics, with what explains it: the statements that count against it, and the
-- cause of the sample. `span_id` is the outermost span of the sample's trace, `project_id` LangSmith's project.
with against as (
    select
        sample_id,
        list(text order by ordinal) filter (where source = 'answer' and label = 'FP') as wrong,
        list(text order by ordinal) filter (where source = 'ground_truth' and label = 'FN') as left_out,
        list(text order by ordinal) filter (where source = 'answer' and not supported) as unsupported,
        list(text order by ordinal) filter (where source = 'ground_truth' and not supported) as not_retrieved
    from statement_verdicts
    where run_id = $run_id
    group by sample_id
)

select
    scores.sample_id,
    scores.metric,
    scores.value,
    samples.metadata ->> '$.span_id' as span_id,
    samples.metadata ->> '$.project_id' as project_id,
    sample_causes.cause,
    sample_causes.evidence,
    against.* exclude (sample_id)
from scores
inner join run_samples
    on run_samples.run_id = scores.run_id
    and run_samples.sample_id = scores.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
left join sample_causes
    on sample_causes.run_id = scores.run_id
    and sample_causes.sample_id = scores.sample_id
left join against
    on against.sample_id = scores.sample_id
where scores.run_id = $run_id and list_contains($metrics, scores.metric) and isfinite(scores.value)
order by run_samples.ordinal, scores.metric
