-- The samples in whose conversation the question of a sample is an earlier turn.
select distinct sample_id
from samples
where sample_id <> $sample_id
    and list_has_any(
        conversation ->> '$[*].text',
        (select list(question) from samples where sample_id = $sample_id and question is not null)
    )
order by sample_id
