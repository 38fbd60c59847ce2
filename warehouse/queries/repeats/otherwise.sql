-- One row: how many samples of a run that were asked again, how often an answer came, and how many samples were answered
-- otherwise at least once. The failed ones say nothing.
with again as (
    select run_samples.sample_id, run_samples.input_hash
    from run_samples
    inner join runs using (run_id)
    inner join responses on responses.run_id = run_samples.run_id and responses.sample_id = run_samples.sample_id
    where runs.kind = 'repeats' and runs.parent_run_id = $run_id and runs.status in ('completed', 'incomplete')
        and responses.status = 'ok'
)

select
    count(distinct again.sample_id) as n_questions,
    count(*) as n_answers,
    count(distinct again.sample_id) filter (where again.input_hash <> first.input_hash) as n_otherwise
from again
inner join run_samples as first on first.run_id = $run_id and first.sample_id = again.sample_id
