-- metric: chrf
-- version: 2
-- needs: overlap
-- meaning: How many sequences of letters the answer and the ground truth share
-- One row per sample of the run: chrF of the answer against the ground truth (sacrebleu): F2 of character n-grams, 0 to 1.
with measured as (
    select run_id, sample_id, value as overlap
    from similarities
    where kind = 'chrf'
)

select
    run_id,
    sample_id,
    case when reason is null then overlap end as value,
    case when value is null then coalesce(reason, 'no_answer') end as unscored_reason
from sample_steps
left join measured using (run_id, sample_id)
where run_id = $run_id and step = 'overlap'
