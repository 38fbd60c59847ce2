-- One row per sample of a run: the one cause that its verdicts point to, and what decided. No model is asked: everything
-- follows from labels, support, usefulness, ranks, reference ids and votes, by the rules of cause_rules and the numbers of
-- cause_thresholds. Of what the answer leaves out the largest part decides, and on a tie the part that comes first there.
-- They are computed when the run is scored, as `queries/stored/causes.sql` says.
create or replace view sample_causes as
select *
from stored_causes;

comment on view sample_causes is 'One row per sample of a run: the one cause that its verdicts point to, and what decided.';
comment on column sample_causes.run_id is 'Run.';
comment on column sample_causes.sample_id is 'Sample.';
comment on column sample_causes.ordinal is 'Place of the sample in the dataset.';
comment on column sample_causes.cause is 'Cause, one of the causes in cause_rules; fine when nothing is wrong, refused_rightly when the bot rightly refused, not_judged when verdicts are missing.';
comment on column sample_causes.rule is 'Rule that decided; cause_rules says when it holds.';
comment on column sample_causes.reason is 'Why the sample was not judged, one of unscored_reasons; NULL when it was.';
comment on column sample_causes.evidence is 'What decided, in short: how many statements of how many, their ids, for which other samples of the run the same was found or in which earlier run, and which update came since; for a sample that was not judged the reason and the steps; NULL when it is fine or was refused rightly.';
comment on column sample_causes.n_deciding is 'Statements that decided, or with split votes the verdicts.';
comment on column sample_causes.n_judged is 'Of how many: the statements of the text that the rule looks at (of both when the rule compares them), or the verdicts by vote.';
comment on column sample_causes.statement_ids is 'Ids of the statements that decided: A1, A2, … of the answer, G1, G2, … of the ground truth.';
comment on column sample_causes.other_rules is 'Further rules that hold for the sample and were not the first.';
