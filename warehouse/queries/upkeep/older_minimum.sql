-- Of `scores`: the lowest value a score can have. Until it was kept only these metrics had one above 0.
case
    when metric = 'accuracy' then 0.1
    when metric = 'accuracy_3' then 1 / 3
    when metric in ('accuracy_5', 'passage_precision', 'passage_recall') then 0.2
end
