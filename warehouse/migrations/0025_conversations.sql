-- What was said before a question, and which of it supports a statement. Samples from before have no conversation.
alter table samples add column conversation json;
alter table attributions add column turn_ranks integer[];

comment on column samples.conversation is 'The turns before the question, the oldest first, as objects with role (user or assistant), text, and contexts and context_ids of an assistant''s turn where they are known; NULL for a question that begins its conversation, or stands alone.';
comment on column attributions.supported is 'Whether the retrieved contexts support it, one alone or several together, or earlier turns of its conversation do.';
comment on column attributions.turn_ranks is 'Places, from 1 for the oldest, of the earlier turns that support it, alone or together with the contexts of joint_ranks; empty where none does, NULL where there was no conversation and for what was judged before this was asked.';
