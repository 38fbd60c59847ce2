-- Metrics of a run for which none of its samples has what they need, such as reference ids; failures are none of them.
select metric
from scores
where run_id = $run_id
group by metric
having count(value) = 0
    and bool_or(unscored_reason in ('no_reference_ids', 'no_statements'))
    and not bool_or(unscored_reason in (select unnest($failures)))
order by metric
