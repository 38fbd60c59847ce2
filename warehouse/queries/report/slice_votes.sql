select votes.sample_id, votes.step, votes.item_id, votes.verdict, count(*) as n, bool_and(votes.agrees) as agrees
from slice
inner join votes on votes.sample_id = slice.sample_id
where votes.run_id = $run_id
group by all
order by votes.sample_id, votes.step, votes.item_id, agrees desc, n desc, votes.verdict
