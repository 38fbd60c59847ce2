-- What a model said to itself before a reply, which until now was thrown away or stood within the reply.
alter table llm_calls add column thoughts varchar;

comment on column llm_calls.thoughts is 'What the model said to itself before its reply, no part of it; NULL when nothing came. Its tokens are among completion_tokens.';
