-- One row per decision of a person on a question of these versions of a set.
select
    question_id,
    change,
    "before",
    "after"
from testset_changes
where list_contains($set_hashes::varchar[], set_hash)
    and testset_changes.change in ('accepted', 'fixed', 'dropped')
    and json_extract_string("after", '$.reviewer') is not null
