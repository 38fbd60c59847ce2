-- One row per candidate that was turned down in the runs that made a version, for a reason where one is named.
select distinct kind, language, reason, detail, question, ground_truth
from testset_candidates
where run_id in (select run_id from testset_versions where set_hash = $set_hash)
    and outcome = 'rejected'
    and ($reason is null or reason = $reason)
    and ($kind is null or kind = $kind)
order by reason, question
