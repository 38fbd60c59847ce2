-- Which way each score is better, as the header of its metric's file said when it was scored. Until now only these three
-- metrics were better when low.
alter table scores add column better varchar;

update scores set better = 'low' where metric in ('hallucination', 'noise_sensitivity_irrelevant', 'noise_sensitivity_relevant');

comment on column scores.better is 'Which way is better: high or low. NULL for what was scored before this was kept; then it is high.';
