-- metric: context_precision
-- version: 1
-- needs: rank
-- default: yes, place 6
-- correctable: no, ranks
-- One row per sample of the run: the mean, over the useful contexts, of the share of useful contexts down to
-- their rank k, sum(useful_k * useful in the top k / k) / sum(useful_k); 0 when none is useful.
with steps as (
    select run_id, sample_id, arg_min(reason, precedence) as reason
    from sample_steps
    where step = 'rank'
    group by run_id, sample_id
),

ranked as (
    select
        run_id,
        sample_id,
        useful,
        count(*) filter (where useful) over (partition by run_id, sample_id order by context_rank)
            / context_rank as precision_here
    from context_verdicts
),

averaged as (
    select run_id, sample_id, coalesce(avg(precision_here) filter (where useful), 0) as average_precision
    from ranked
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    case when reason is null then average_precision end as value,
    case when value is null then coalesce(reason, 'no_contexts') end as unscored_reason
from steps
left join averaged using (run_id, sample_id)
where run_id = $run_id
