-- metric: surface_similarity
-- version: 2
-- needs: similarity
-- embeddings: hashing
-- meaning: How alike the answer and the ground truth are in spelling, not in meaning
-- One row per sample of the run: cosine of the counted character n-grams (2 to 4, within words) of answer and ground
-- truth, 0 to 1. It sees spelling and not meaning: high for a sentence and its negation, low for a paraphrase. Where a
-- run named an embedding model it has no value: semantic_similarity is its metric.
with steps as (
    select
        run_id,
        sample_id,
        coalesce(
            arg_min(reason, precedence),
            case when any_value(runs.embeddings) <> 'hashing' then 'embedding_failed' end
        ) as reason
    from sample_steps
    left join runs using (run_id)
    where step = 'similarity'
    group by run_id, sample_id
),

cosines as (
    select run_id, sample_id, max(least(greatest(value, 0), 1)) filter (where not isnan(value)) as similarity
    from similarities
    where kind = 'answer_ground_truth'
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then similarity end as value,
    case when value is null then coalesce(reason, 'embedding_failed') end as unscored_reason
from steps
left join cosines using (run_id, sample_id)
where run_id = $run_id
