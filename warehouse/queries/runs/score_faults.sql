-- What is wrong with a metric's rows, one row of counts. Users write metrics too, and a mean over doubled samples or
-- a NaN would be believed.
select
    count(*) - count(distinct sample_id) as "rows for a sample that has one",
    count(*) filter (where not isfinite(value)) as "values that are not finite numbers",
    count(*) filter (where (value is null) = (unscored_reason is null))
        as "rows without either a value or an unscored_reason",
    (select count(*) from run_samples where run_id = $run_id) - count(distinct sample_id)
        as "samples of the run without a row"
from metric_scores
