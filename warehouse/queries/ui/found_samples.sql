-- One row per wanted sample of a run, as a table shows it.
with labelled as (
    select
        classifications.sample_id,
        count(*) filter (where source = 'answer' and label = 'TP') as n_tp,
        count(*) filter (where label = 'FP') as n_fp,
        count(*) filter (where label = 'FN') as n_fn
    from wanted
    inner join classifications on classifications.sample_id = wanted.sample_id
    inner join statements
        on statements.run_id = classifications.run_id
        and statements.sample_id = classifications.sample_id
        and statements.statement_id = classifications.statement_id
    where classifications.run_id = $run_id and statements.run_id = $run_id
    group by classifications.sample_id
),

attributed as (
    select attributions.sample_id, count(*) filter (where not supported) as n_unsupported
    from wanted
    inner join attributions on attributions.sample_id = wanted.sample_id
    inner join statements
        on statements.run_id = attributions.run_id
        and statements.sample_id = attributions.sample_id
        and statements.statement_id = attributions.statement_id
    where attributions.run_id = $run_id and statements.run_id = $run_id and statements.source = 'answer'
    group by attributions.sample_id
),

caused as (
    select sample_id, cause
    from sample_causes
    where run_id = $run_id
)

select
    wanted.sample_id,
    run_samples.ordinal,
    samples.question,
    samples.answer,
    samples.ground_truth,
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata,
    caused.cause,
    labelled.n_tp,
    labelled.n_fp,
    labelled.n_fn,
    attributed.n_unsupported
from wanted
inner join run_samples
    on run_samples.run_id = $run_id
    and run_samples.sample_id = wanted.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
left join labelled on labelled.sample_id = wanted.sample_id
left join attributed on attributed.sample_id = wanted.sample_id
left join caused on caused.sample_id = wanted.sample_id
order by wanted.place
