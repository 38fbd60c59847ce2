-- One row per metric and step it rests on, from the headers of the metric files.
create or replace view metric_steps as
with listed (metric, step, optional) as (
    values
$rows
)

select metric::varchar as metric, step::varchar as step, optional::boolean as optional
from listed
where metric is not null;

comment on view metric_steps is 'One row per metric and step it rests on.';
comment on column metric_steps.metric is 'Metric.';
comment on column metric_steps.step is 'Step whose verdicts it reads.';
comment on column metric_steps.optional is 'True when the metric reads what the step would, and rests on none of its verdicts.';
