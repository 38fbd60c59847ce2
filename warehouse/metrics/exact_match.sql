-- metric: exact_match
-- version: 3
-- needs: overlap
-- meaning: Whether the answer is the ground truth word for word, but for capitals, punctuation and articles
-- One row per sample of the run: 1 when the answer is the ground truth but for capital letters, punctuation, articles (a,
-- an, the) and white space, as SQuAD normalises them, and for Unicode forms (NFKC), else 0. Of several accepted answers
-- one is enough. Source: Rajpurkar et al. 2016, arXiv:1606.05250.
with measured as (
    select run_id, sample_id, value as overlap
    from similarities
    where kind = 'squad_exact_match'
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
