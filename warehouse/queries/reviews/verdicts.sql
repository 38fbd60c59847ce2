-- An item that was picked, however its label comes in, has the design of the last export that asked for it.
with last_picks as (
    select
        item_hash,
        arg_max(export_id, picked_at) as export_id,
        arg_max(stratum, picked_at) as stratum,
        arg_max(probability, picked_at) as probability
    from review_picks
    where run_id = $run_id and asked
    group by item_hash
)

select review_items.* exclude (reason, text, source), export_id, stratum, probability
from review_items
left join last_picks using (item_hash)
where review_items.run_id = $run_id
