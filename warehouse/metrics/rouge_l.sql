-- metric: rouge_l
-- version: 3
-- needs: overlap
-- meaning: How many words the answer and the ground truth share in the same order
-- One row per sample of the run: ROUGE-L of the answer against the ground truth: F1 of the longest common
-- subsequence of lower-case tokens.
with measured as (
    select run_id, sample_id, value as overlap
    from similarities
    where kind = 'rouge_l'
)

select
    run_id,
    sample_id,
    case when reason is null then overlap end as value,
    case when value is null then coalesce(reason, 'no_answer') end as unscored_reason
from sample_steps
left join measured using (run_id, sample_id)
where run_id = $run_id and step = 'overlap'
