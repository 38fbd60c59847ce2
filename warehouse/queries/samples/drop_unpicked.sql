-- Of a run with a budget of samples only picked ones are judged.
delete from run_samples
where
    run_id = $run_id
    and sample_id not in (select sample_id from sample_picks where run_id = $run_id and picked)
