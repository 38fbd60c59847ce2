select
    item_hash,
    reviewer,
    reviewed_at,
    label,
    first_label,
    note,
    bool_or(export_id is not null)
        over (partition by item_hash, reviewer order by reviewed_at, imported_at rows unbounded preceding) as is_answer
from reviews
where (item_hash, reviewer) in (select (item_hash, reviewer) from incoming_keys)
order by reviewed_at, imported_at
