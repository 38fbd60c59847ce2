-- What is wrong with the rows of each of some metrics, one row of counts a metric, in their order. Users write metrics
-- too, and a mean over doubled samples or a NaN would be believed.
select
    metric,
    count(metric_scores.metric) - count(distinct sample_id) as "rows for a sample that has one",
    count(*) filter (where not isfinite(value)) as "values that are no finite number",
    count(metric_scores.metric) filter (where (value is null) = (unscored_reason is null))
        as "rows without either a value or an unscored_reason",
    (select count(*) from run_samples where run_id = $run_id) - count(distinct sample_id)
        as "samples of the run without a row"
from (select unnest($metrics::varchar[]) as metric, generate_subscripts($metrics::varchar[], 1) as place) as wanted
left join metric_scores using (metric)
group by metric, place
order by place
