-- The samples that a run with a budget kept are numbered again, without gaps.
update run_samples
set ordinal = kept.place
from (
    select run_samples.sample_id, row_number() over (order by run_samples.ordinal) as place
    from run_samples
    inner join sample_picks
        on sample_picks.run_id = run_samples.run_id
        and sample_picks.sample_id = run_samples.sample_id
        and sample_picks.picked
    where run_samples.run_id = $run_id
) as kept
where run_samples.run_id = $run_id and run_samples.sample_id = kept.sample_id
