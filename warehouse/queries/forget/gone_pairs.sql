-- The samples that are forgotten by themselves. What was asked to make a question of a test set has the names of its
-- candidate and of the request that wrote it.
create or replace temp table gone_pairs as
select run_id, sample_id
from forgotten
where sample_id is not null
union
select testset_candidates.run_id, unnest([testset_candidates.candidate_id, llm_calls.sample_id])
from testset_candidates
inner join forgotten
    on forgotten.run_id = testset_candidates.run_id
    and forgotten.sample_id = testset_candidates.question_id
left join llm_calls on llm_calls.call_id = testset_candidates.call_id
