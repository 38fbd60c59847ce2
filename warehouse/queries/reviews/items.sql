with placed as (
    select
        review_items.* exclude (run_id),
        run_samples.ordinal,
        coalesce(statement_id, 'C' || context_rank) as item_id,
        -- Verdicts of the sample that a score of this kind counts together.
        count(*) over (partition by review_items.sample_id, step, source) as n_beside
    from review_items
    inner join run_samples
        on run_samples.run_id = review_items.run_id
        and run_samples.sample_id = review_items.sample_id
    -- What was forgotten cannot be shown to anybody.
    anti join forgotten_samples
        on forgotten_samples.run_id = $run_id
        and forgotten_samples.sample_id = review_items.sample_id
    where review_items.run_id = $run_id
),

split as (
    select distinct sample_id, step, item_id
    from votes
    where run_id = $run_id and not agrees
),

known as (
    select distinct item_hash from reviews
)

select
    placed.* exclude (item_id),
    split.item_id is not null as votes_differ,
    known.item_hash is not null as is_reviewed
from placed
left join split using (sample_id, step, item_id)
left join known using (item_hash)
order by ordinal, sample_id, step, source, statement_id, context_rank
