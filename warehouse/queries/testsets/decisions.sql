-- One row per decision of a person on a question of these versions of a set; earlier versions wrote mended for fixed.
select
    question_id,
    if(change = 'mended', 'fixed', change) as change,
    "before",
    "after"
from testset_changes
where list_contains($set_hashes::varchar[], set_hash)
    and testset_changes.change in ('accepted', 'fixed', 'mended', 'dropped')
    and json_extract_string("after", '$.reviewer') is not null
