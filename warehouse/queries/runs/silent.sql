-- One row per metric of a run that scored no sample, with why and how often; has_failed where that is not all that
-- the samples lack.
with counted as (
    select metric, unscored_reason as reason, count(value) as n_scored, count(*) as n
    from scores
    where run_id = $run_id
    group by metric, unscored_reason
)

select
    metric,
    string_agg(reason || ' ' || n, ', ' order by n desc, reason) as reasons,
    bool_or(reason in (select unnest($failures))) as has_failed,
    bool_and(reason in ('no_reference_ids', 'no_statements', 'no_citations')) as is_rare
from counted
group by metric
having sum(n_scored) = 0
order by metric
