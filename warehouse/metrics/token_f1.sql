-- metric: token_f1
-- version: 2
-- needs: overlap
-- meaning: How many words the answer and the ground truth share, in any order
-- One row per sample of the run: F1 of the words that answer and ground truth have in common, normalised as for
-- exact_match; Chinese characters count as words. Of several accepted answers the best counts. Source: Rajpurkar et al.
-- 2016, arXiv:1606.05250.
with measured as (
    select run_id, sample_id, value as overlap
    from similarities
    where kind = 'token_f1'
)

select
    run_id,
    sample_id,
    case when reason is null then overlap end as value,
    -- A run that took the step before it measured this never asked for it.
    case when value is null then coalesce(reason, 'cancelled') end as unscored_reason
from sample_steps
left join measured using (run_id, sample_id)
where run_id = $run_id and step = 'overlap'
