-- One row per item that was voted on, and vote: whether it says yes, in any part where the item was judged in parts.
select step, sample_id, item_id, vote, bool_or(verdict not in (select "no" from wanted)) as says_yes
from votes
where run_id = $run_id
group by step, sample_id, item_id, vote
order by step, sample_id, item_id, vote
