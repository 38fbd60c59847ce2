-- What was said before a question, and which of it supports a statement. Samples from before have no conversation.
alter table samples add column conversation json;
alter table attributions add column turn_ranks integer[];

comment on column samples.conversation is 'The turns before the question, the oldest first, as objects with role (user or assistant), text, and contexts and context_ids of an assistant''s turn where they are known; NULL for a question that begins its conversation, or stands alone.';
comment on column attributions.supported is 'Whether the retrieved contexts support it, one alone or several together, or earlier turns of its conversation do.';
comment on column attributions.turn_ranks is 'Places, from 1 for the oldest, of the earlier turns that support it, alone or together with the contexts of joint_ranks; empty where none does, NULL where there was no conversation and for what was judged before this was asked.';

-- One row per statement of an answer that came after earlier turns, and per point of the user's in them.
create table turn_verdicts (
    run_id        varchar not null,
    sample_id     varchar not null,
    statement_id  varchar not null,
    statement     varchar,
    label         varchar not null,
    turn_ranks    integer[],
    reason        varchar,
    call_id       varchar
);

comment on table turn_verdicts is 'One row per statement of an answer that was held against the turns before it, and per point that the user made in them.';
comment on column turn_verdicts.run_id is 'Run.';
comment on column turn_verdicts.sample_id is 'Sample.';
comment on column turn_verdicts.statement_id is 'A1, A2, … a statement of the answer, as in statements; U1, U2, … a point that the user made earlier and that matters for the question.';
comment on column turn_verdicts.statement is 'The statement, or the point in the judge''s words.';
comment on column turn_verdicts.label is 'Of a statement: consistent, or contradicts where an earlier answer says otherwise. Of a point: heeded or ignored by the answer.';
comment on column turn_verdicts.turn_ranks is 'Places, from 1 for the oldest, of the turns that the statement contradicts, or of the one that makes the point.';
comment on column turn_verdicts.reason is 'The judge''s reason.';
comment on column turn_verdicts.call_id is 'Call in llm_calls that gave the verdict.';
