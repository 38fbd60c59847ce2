-- One row per change of a version by which a question is not in it: changes that removed it, and proposals that wait.
select distinct question_id, change, detail, "before"
from testset_changes
where set_hash = $set_hash
    and question_id not in (select question_id from testset_questions where set_hash = $set_hash)
order by change, question_id
