-- One row per sample of an evaluation, against the evaluation before it in its series: whether what is judged has changed,
-- and whether its verdicts were asked for again.
create or replace view sample_changes as
with placed as (
    select
        run_id,
        -- A run of all samples or of as many; without one any other, such as a trial of a few.
        coalesce(
            greatest(
                last_value(case when part is null then ended end ignore nulls) over of_series,
                last_value(ended ignore nulls) over of_part
            ),
            last_value(ended ignore nulls) over of_series
        ) as previous_run_id
    -- A run that was stopped, or never got as far, is nothing to compare with.
    from (select *, case when status in ('completed', 'incomplete') then run_id end as ended from run_series)
    window
        of_series as (
            partition by series order by started_at, run_id rows between unbounded preceding and 1 preceding
        ),
        of_part as (
            partition by series, part order by started_at, run_id rows between unbounded preceding and 1 preceding
        )
),

asked as (
    select run_id, sample_id, count(*) filter (where status <> 'cached') as n_requests
    from llm_calls
    group by run_id, sample_id
)

select
    run_samples.run_id,
    run_samples.sample_id,
    case
        when previous.sample_id is null then 'new'
        when previous.input_hash <> run_samples.input_hash then 'changed'
        else 'unchanged'
    end as change,
    placed.previous_run_id,
    case
        when asked.n_requests > 0 then 'asked anew'
        when asked.n_requests = 0 then 'reused'
    end as judged
from run_samples
inner join placed on placed.run_id = run_samples.run_id
left join run_samples as previous
    on previous.run_id = placed.previous_run_id
    and previous.sample_id = run_samples.sample_id
left join asked
    on asked.run_id = run_samples.run_id
    and asked.sample_id = run_samples.sample_id;

comment on view sample_changes is 'One row per sample of an evaluation, against the evaluation before it in its series.';
comment on column sample_changes.run_id is 'Run.';
comment on column sample_changes.sample_id is 'Sample.';
comment on column sample_changes.change is 'new: the run before did not have the sample; changed: question, answer, ground truth, contexts or their ids differ; unchanged.';
comment on column sample_changes.previous_run_id is 'The completed or incomplete run before in the series; NULL for the first, whose samples are all new.';
comment on column sample_changes.judged is 'asked anew: at least one request was sent for the sample in this run; reused: all its verdicts came from the record; NULL when nothing had to be asked.';
