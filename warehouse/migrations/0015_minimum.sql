-- The lowest value a score can have, as the header of its metric's file said when it was scored: a rating from 1 to 10 is
-- no lower than 0.1 of its scale, and the interval of a mean ends there.
alter table scores add column minimum double;

update scores
set minimum = case metric when 'accuracy' then 0.1 when 'accuracy_3' then 1 / 3 else 0.2 end
where metric in ('accuracy', 'accuracy_3', 'accuracy_5', 'passage_precision', 'passage_recall');

comment on column scores.minimum is 'The lowest value that the metric can have; NULL where that is 0.';
