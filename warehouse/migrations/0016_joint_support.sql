-- Contexts that support a statement only together. Until now a statement that no context supports alone was unsupported.
alter table attributions add column joint_ranks integer[];

comment on column attributions.supported is 'Whether the retrieved contexts support it, one alone or several together.';
comment on column attributions.context_ranks is 'Ranks, from 1, of the contexts that support it alone.';
comment on column attributions.joint_ranks is 'Ranks, from 1, of contexts that support it together where none does alone, else empty; NULL for what was judged before this was asked.';
comment on column votes.verdict is 'What the vote says: a label, or in attribute the ranks of the contexts that support the statement alone (1,3) or together (1+3), or none.';
