-- metric: answer_correctness
-- version: 1
-- needs: classify, similarity
-- parameter: factual_weight = 0.75
-- parameter: similarity_weight = 0.25
-- default: yes, place 5
-- correctable: no, ratio
-- meaning: How right the answer is: the facts that it states, and its likeness to the ground truth
-- One row per sample of the run: the mean of factual_f1 and semantic_similarity, weighted by the two parameters
-- over their sum; NULL when a part with a weight is undefined, with that part's reason. A part of weight 0 is not
-- asked for.
with weights as (
    select
        case
            when $factual_weight >= 0 and $similarity_weight >= 0 and $factual_weight + $similarity_weight > 0
                then $factual_weight / ($factual_weight + $similarity_weight)
            else error(
                'metric answer_correctness: weights must be 0 or more and not both 0, but factual_weight is '
                || $factual_weight || ' and similarity_weight is ' || $similarity_weight
            )
        end as factual_weight
),

steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    cross join weights
    where (step = 'classify' and factual_weight > 0) or (step = 'similarity' and factual_weight < 1)
    group by run_id, sample_id
),

-- As in factual_f1.
factual as (
    select
        run_id,
        sample_id,
        case when n_answer + n_ground_truth > 0 then n_tp / greatest(n_tp + 0.5 * (n_fp + n_fn), 1) end as f1
    from sample_statement_counts
),

-- As in semantic_similarity.
cosines as (
    select run_id, sample_id, max(least(greatest(value, 0), 1)) filter (where not isnan(value)) as similarity
    from similarities
    where kind = 'answer_ground_truth'
    group by run_id, sample_id
),

parts as (
    select
        run_id,
        sample_id,
        reason,
        case when factual_weight = 0 then 0 else factual_weight * f1 end as factual_part,
        case when factual_weight = 1 then 0 else (1 - factual_weight) * similarity end as similarity_part
    from steps
    cross join weights
    left join factual using (run_id, sample_id)
    left join cosines using (run_id, sample_id)
)

select
    run_id,
    sample_id,
    case when reason is null then factual_part + similarity_part end as value,
    case
        when value is not null then null
        when reason is not null then reason
        when similarity_part is null then 'embedding_failed'
        else 'no_statements'
    end as unscored_reason
from parts
where run_id = $run_id
