-- Of a call's log-probabilities what a grade may rest on: the numbers of the reply with what else could have stood in their
-- place, as JSON. NULL where they were not asked for or the endpoint gave none.
alter table llm_calls add column logprobs varchar;
