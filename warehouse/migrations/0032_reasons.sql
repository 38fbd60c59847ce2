-- What stands in `reason` is no longer words alone: by the fused plan a verdict in favour names what it rests on.

comment on column classifications.reason is 'The judge''s reason in words; of a TP by the fused plan the ids of the statements of the other side that carry it.';
comment on column attributions.reason is 'The judge''s reason in words; where contexts support it, by the fused plan their ids.';
comment on column context_verdicts.reason is 'The judge''s reason in words; of a useful one by the fused plan the ids of the ground truth''s statements that it helps to reach, or words of the ground truth.';
comment on column votes.reason is 'The judge''s reason, as in the table of the step.';
