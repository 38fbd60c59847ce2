-- The verdicts of one table about samples of a run with ordinals from $first to $last.
select {table}.* exclude (run_id, call_id)
from {table}
inner join run_samples using (run_id, sample_id)
where run_id = $run_id and run_samples.ordinal between $first and $last
