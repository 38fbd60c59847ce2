-- One row per sample, the worst of a run first by the mean of its main metrics, with the statement that is most wrong:
-- one that the answer states falsely, then one without support, then one that it leaves out.
with rated as (
    select sample_id, avg(if(better = 'low', 1 - value, value)) as goodness
    from scores
    where run_id = $run_id and metric in (select unnest($metrics)) and value is not null
    group by sample_id
    having goodness < 1
),

picked as (
    select rated.sample_id, rated.goodness, run_samples.input_hash, run_samples.ordinal
    from rated
    inner join run_samples on run_samples.run_id = $run_id and run_samples.sample_id = rated.sample_id
    order by rated.goodness, run_samples.ordinal
    limit $most
),

stated as (
    select
        statements.sample_id,
        statements.text,
        classifications.label,
        coalesce(classifications.reason, attributions.reason) as reason,
        attributions.supported,
        statements.source,
        statements.ordinal
    from statements
    left join classifications
        on classifications.run_id = $run_id
        and classifications.sample_id = statements.sample_id
        and classifications.statement_id = statements.statement_id
    left join attributions
        on attributions.run_id = $run_id
        and attributions.sample_id = statements.sample_id
        and attributions.statement_id = statements.statement_id
    where statements.run_id = $run_id
        and statements.sample_id in (select sample_id from picked)
        and (classifications.label in ('FP', 'FN') or (statements.source = 'answer' and not attributions.supported))
),

worst as (
    select *
    from stated
    qualify row_number() over (
        partition by sample_id
        order by
            case when label = 'FP' then 0 when source = 'answer' then 1 else 2 end,
            coalesce(supported, true) = (label is not distinct from 'FP'),
            ordinal
    ) = 1
)

select
    picked.sample_id,
    picked.goodness,
    samples.question,
    samples.answer,
    worst.text as statement,
    worst.label,
    worst.reason,
    worst.supported
from picked
left join samples on samples.sample_id = picked.sample_id and samples.input_hash = picked.input_hash
left join worst on worst.sample_id = picked.sample_id
order by picked.goodness, picked.ordinal
