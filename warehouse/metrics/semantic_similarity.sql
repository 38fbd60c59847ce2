-- metric: semantic_similarity
-- version: 2
-- needs: similarity
-- embeddings: model
-- meaning: How alike the answer and the ground truth are in meaning
-- One row per sample of the run: cosine of the embeddings of answer and ground truth, clipped to 0 to 1; an
-- embedding without a direction has no cosine, so NaN counts as embedding_failed. Of a run that named no embedding
-- model, whose n-grams see spelling and not meaning, it has no value: surface_similarity is their metric.
with steps as (
    select
        run_id,
        sample_id,
        coalesce(
            arg_min(reason, precedence),
            case when any_value(runs.embeddings) = 'hashing' then 'embedding_failed' end
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
