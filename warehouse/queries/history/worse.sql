with after as (select sample_id, metric, value, metric_version, better from scores where run_id = $candidate),

before as (select sample_id, metric, value, metric_version from scores where run_id = $base),

fallen as (
    select after.sample_id, after.metric, before.value as before, after.value as after,
           case after.better
               when 'low' then after.value - before.value
               when 'neutral' then 0
               else before.value - after.value
           end as worse_by,
           after.metric_version <> before.metric_version as formula_changed
    from after
    inner join before on before.sample_id = after.sample_id and before.metric = after.metric
    where worse_by > 1e-9
),

worst as (
    select sample_id, max(worse_by) as worst_by, sum(worse_by) as worse_by, bool_or(formula_changed) as formula_changed,
           list({metric: metric, before: before, after: after} order by worse_by desc, metric) as moves
    from fallen
    group by sample_id
    order by worst_by desc, worse_by desc, sample_id
    limit $most
)

select worst.*, here.input_hash <> there.input_hash as input_changed,
       new_texts.question, old_texts.answer as old_answer, new_texts.answer as new_answer
from worst
inner join run_samples as here on here.run_id = $candidate and here.sample_id = worst.sample_id
inner join run_samples as there on there.run_id = $base and there.sample_id = worst.sample_id
left join samples as new_texts
    on new_texts.sample_id = here.sample_id and new_texts.input_hash = here.input_hash
left join samples as old_texts
    on old_texts.sample_id = there.sample_id and old_texts.input_hash = there.input_hash
order by worst.worst_by desc, worst.worse_by desc, worst.sample_id
