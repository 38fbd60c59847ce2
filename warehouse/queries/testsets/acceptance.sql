-- One row per kind, language and judge with decided questions: how many decisions of each sort people made. Of all sets,
-- or of the questions of these versions.
select
    question_reviews.kind,
    question_reviews.language,
    question_reviews.judge,
    count(*) as n,
    count(*) filter (decision = 'accepted') as n_accepted,
    count(*) filter (decision = 'fixed') as n_fixed,
    count(*) filter (decision = 'dropped') as n_dropped
from question_reviews
where len($set_hashes::varchar[]) = 0 or list_contains($set_hashes::varchar[], question_reviews.set_hash)
group by all
order by question_reviews.kind, question_reviews.language, question_reviews.judge
