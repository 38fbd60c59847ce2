-- One row per verdict of a sample that can be reviewed, in the order of its texts and contexts, with the latest label of
-- each reviewer.
with items as (
    select review_items.*, statements.ordinal
    from review_items
    left join statements
        on statements.run_id = review_items.run_id
        and statements.sample_id = review_items.sample_id
        and statements.statement_id = review_items.statement_id
    where review_items.run_id = $run_id and review_items.sample_id = $sample_id
),

latest as (
    select item_hash, reviewer, label, note, reviewed_at
    from reviews
    where item_hash in (select item_hash from items)
    qualify row_number() over (partition by item_hash, reviewer order by reviewed_at desc, imported_at desc) = 1
),

labelled as (
    select item_hash, list({reviewer: reviewer, label: label, note: note} order by reviewed_at, reviewer) as labels
    from latest
    group by item_hash
)

select
    items.* exclude (ordinal),
    -- A person who chose it was not drawn by chance, even where an export has asked others.
    null::varchar as export_id,
    null::varchar as stratum,
    null::double as probability,
    coalesce(labelled.labels, []) as labels
from items
left join labelled on labelled.item_hash = items.item_hash
order by items.source nulls last, items.ordinal, items.context_rank, items.step desc
