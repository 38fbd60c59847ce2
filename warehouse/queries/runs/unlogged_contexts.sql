-- One row: how many samples the rubric relevance graded though their contexts are absent, not empty.
select count(*) as n_unlogged
from grades
inner join run_samples
    on run_samples.run_id = grades.run_id
    and run_samples.sample_id = grades.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
where grades.run_id = $run_id and grades.rubric = 'relevance' and grades.criterion = 'final' and samples.contexts is null
