-- One row per sample of a run with ordinals from $first to $last that lacks verdicts of one of these steps, with the reason.
select sample_id, arg_min(sample_steps.reason, sample_steps.precedence) as reason
from sample_steps
inner join run_samples using (run_id, sample_id)
where run_id = $run_id
    and run_samples.ordinal between $first and $last
    and sample_steps.step in (select step from wanted)
    and sample_steps.reason is not null
group by sample_id
