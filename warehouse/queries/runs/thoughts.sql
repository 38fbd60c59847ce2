-- One row: of how many answers of a run thoughts were left out, and how many of these were nothing else.
select count(*) as n_answers, count(*) filter (where samples.answer is null) as n_empty
from run_samples
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
left join responses
    on responses.run_id = run_samples.run_id
    and responses.sample_id = run_samples.sample_id
where
    run_samples.run_id = $run_id
    and coalesce(responses.thoughts, coalesce(run_samples.metadata, samples.metadata) ->> 'answer_thoughts') is not null
