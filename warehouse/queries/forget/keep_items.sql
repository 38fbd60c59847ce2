-- The hashes under which labels are stored, before their texts are deleted.
insert into forgotten_items by name
select distinct run_id, sample_id, step, coalesce(statement_id, 'C' || context_rank) as item_id, item_hash, question_hash
from review_items
where run_id in (select run_id from here)
    and ($sample_id is null or sample_id = $sample_id)
    and item_hash in (select item_hash from reviews union select item_hash from review_picks)
    and (run_id, sample_id, step, item_id) not in (select (run_id, sample_id, step, item_id) from forgotten_items)
