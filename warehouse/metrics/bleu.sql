-- metric: bleu
-- version: 2
-- needs: overlap
-- meaning: How many words and phrases of the answer are in the ground truth too
-- One row per sample of the run: sentence BLEU of the answer against the ground truth (sacrebleu), 0 to 1.
with measured as (
    select run_id, sample_id, value as overlap
    from similarities
    where kind = 'bleu'
)

select
    run_id,
    sample_id,
    case when reason is null then overlap end as value,
    case when value is null then coalesce(reason, 'no_answer') end as unscored_reason
from sample_steps
left join measured using (run_id, sample_id)
where run_id = $run_id and step = 'overlap'
