select item_hash, reviewer, reviewed_at, label, first_label, note
from reviews
where (item_hash, reviewer) in (select (item_hash, reviewer) from incoming_keys)
order by reviewed_at, imported_at
