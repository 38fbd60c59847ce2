-- metric: context_precision
-- version: 2
-- needs: rank
-- default: yes, place 6
-- correctable: no, ranks
-- One row per sample of the run: the mean, over the useful contexts, of the share of useful contexts down to
-- their rank k, sum(useful_k * useful in the top k / k) / sum(useful_k); 0 when none is useful, or none was retrieved.
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
),

-- An empty list is a retrieval that found nothing; no list at all tells nothing.
empty as (
    select run_samples.run_id, run_samples.sample_id, 0 as precision_of_none
    from run_samples
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    where len(samples.contexts) = 0
)

select
    run_id,
    sample_id,
    case when reason is null then coalesce(average_precision, precision_of_none) end as value,
    case when value is null then coalesce(reason, 'no_contexts') end as unscored_reason
from steps
left join averaged using (run_id, sample_id)
left join empty using (run_id, sample_id)
where run_id = $run_id
