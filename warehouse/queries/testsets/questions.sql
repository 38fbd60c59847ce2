-- One row per question of a version, however many runs made that version.
select distinct *
from testset_questions
where set_hash = $set_hash
order by question_id
