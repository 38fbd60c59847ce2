-- One row per run of these and step that was voted on, in time order.
select votes.run_id, runs.started_at, votes.step, n_items, n_flipped, flip_rate, n_votes, n_against, against_rate
from (from vote_flips where run_id in (select run_id from wanted)) as votes
inner join runs using (run_id)
order by runs.started_at, votes.run_id, votes.step
