-- One row per metric and run of two, one of which judged a part of its dataset: the judged samples that have a score, and
-- the estimated share that has one of the samples which both datasets have. `size` is how many samples of equal weight say
-- as much (Kish 1965, Survey Sampling), `reason` the most frequent one of the scores that are missing. A refusal of what
-- has no answer counts as scored in the share.
with
$common_tables,

weighted as (
    select
        scores.*,
        1 / coalesce(sample_picks.probability, 1) as weight,
        value is not null or (unanswerable.sample_id is not null and unscored_reason = 'no_statements') as has_all
    from scores
    left join sample_picks using (run_id, sample_id)
    left join unanswerable using (run_id, sample_id)
)

select
    metric,
    run_id = $candidate as of_candidate,
    count(value) as n,
    coalesce(sum(weight) filter (where has_all), 0) / sum(weight) as share,
    pow(sum(weight), 2) / sum(weight * weight) as size,
    mode(unscored_reason) as reason
from weighted
group by metric, run_id
