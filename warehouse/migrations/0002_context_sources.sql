-- An answer may cite the address or the source of a context that its application returned.
alter table responses add column context_sources json;

comment on column responses.context_sources is 'For each context the addresses and sources beside its text, which an answer may cite; NULL when it reported none.';
