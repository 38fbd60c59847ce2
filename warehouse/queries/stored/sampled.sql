-- The rows of the view sampled_means of open_runs, a name for a table of run_ids: one per run with a budget of samples and
-- metric, what judging the whole dataset would have given. The estimate is explained in `sampled_terms.sql`.
select
    run_id,
    metric,
    any_value(n_population) as n_population,
    any_value(n_picked) as n_picked,
    count(*) as n_judged,
    any_value(mean) as mean,
    sum(term * term) as variance,
    count(*) filter (where is_surprise) as n_surprises,
    $unseen_share as unseen
from ($sampled_terms)
group by run_id, metric
