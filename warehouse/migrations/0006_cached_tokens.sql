-- Of a call's prompt tokens those that the provider had cached; NULL where it does not say.
alter table llm_calls add column cached_tokens bigint;
