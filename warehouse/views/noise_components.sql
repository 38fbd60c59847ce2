-- One row per run that asked questions again and metric: how much of what its scores vary by is the questions, the bot and
-- the judge.
create or replace view noise_components as
with repeated_runs as (
    select distinct parent_run_id as run_id
    from runs
    where kind = 'repeats' and status in ('completed', 'incomplete')
)

select *
from ($components);

comment on view noise_components is 'One row per run that asked questions again and metric: how much of the variance of its scores is the questions, the bot and the judge.';
comment on column noise_components.run_id is 'Run; its repeats are separate runs.';
comment on column noise_components.metric is 'Metric.';
comment on column noise_components.n_questions is 'Questions whose first answer has a score.';
comment on column noise_components.n_repeated is 'Questions with scores of two answers or more.';
comment on column noise_components.n_answers is 'Answers to these with a score, the first ones among them.';
comment on column noise_components.n_otherwise is 'Repeated questions whose answers do not all have one score.';
comment on column noise_components.n_judged_twice is 'Answers of the series that its judge scored twice in noise runs, the newest ten up to the run.';
comment on column noise_components.n_judged_otherwise is 'Samples of these with another score.';
comment on column noise_components.judged_apart is 'Share of the pairs of answers to one question that were not judged by the very same replies, 0 to 1.';
comment on column noise_components.scale is 'How far two scores can be apart: 1 where they are shares, else as far as these are.';
comment on column noise_components.variance is 'Variance of the first answers'' scores, which question, bot and judge variance add up to; NULL for a single one.';
comment on column noise_components.variance_low is 'Lower end of its 95 % interval.';
comment on column noise_components.variance_high is 'Upper end of its 95 % interval.';
comment on column noise_components.question_variance is 'Variance between questions: what would be left with a bot and a judge that never waver; an estimate below 0 is 0.';
comment on column noise_components.question_low is 'Lower end of its 95 % interval.';
comment on column noise_components.question_high is 'Upper end of its 95 % interval.';
comment on column noise_components.answer_variance is 'Variance between answers to one question: the bot''s, and the judge''s where it read another answer.';
comment on column noise_components.answer_low is 'Lower end of its 95 % interval.';
comment on column noise_components.answer_high is 'Upper end of its 95 % interval.';
comment on column noise_components.bot_variance is 'The bot''s own part of it; an estimate below 0 is 0. NULL where nothing is known of the judge''s noise.';
comment on column noise_components.bot_low is 'Lower end of its 95 % interval.';
comment on column noise_components.bot_high is 'Upper end of its 95 % interval.';
comment on column noise_components.judge_variance is 'Variance between judgements of one answer, by noise runs; 0 for the lexical judge. NULL where it was not measured.';
comment on column noise_components.judge_low is 'Lower end of its 95 % interval.';
comment on column noise_components.judge_high is 'Upper end of its 95 % interval.';
