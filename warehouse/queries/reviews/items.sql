with placed as (
    select
        review_items.* exclude (run_id, text),
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
    -- Not review_items.text, which may be a long context: contexts come with the other texts of the picked samples.
    statements.text as statement,
    split.item_id is not null as votes_differ,
    known.item_hash is not null as is_reviewed
from placed
left join split using (sample_id, step, item_id)
left join known using (item_hash)
left join statements
    on statements.run_id = $run_id
    and statements.sample_id = placed.sample_id
    and statements.statement_id = placed.statement_id
order by placed.ordinal, placed.sample_id, placed.step, placed.source, placed.statement_id, placed.context_rank
