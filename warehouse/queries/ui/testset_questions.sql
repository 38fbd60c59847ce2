-- One row per question of a version, of a kind and a language where they are named, with what changed in this version.
select
    testset_questions.question_id,
    testset_questions.kind,
    testset_questions.language,
    testset_questions.question,
    testset_questions.ground_truth,
    testset_questions.spans,
    noted.changes
from testset_questions
left join (
    select question_id, string_agg(distinct change || coalesce(': ' || detail, ''), '; ') as changes
    from testset_changes
    where set_hash = $set_hash
    group by question_id
) as noted on noted.question_id = testset_questions.question_id
where testset_questions.set_hash = $set_hash
    and ($kind is null or testset_questions.kind = $kind)
    and ($language is null or testset_questions.language = $language)
order by testset_questions.kind, testset_questions.question_id
