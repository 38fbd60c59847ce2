-- The share of a dataset that may differ from its signals, or have moved, with a chance of 2.5 % that none of it was picked.
coalesce(least(
    count(*) filter (where probability < 1),
    ln(0.025) * count(*) filter (where probability < 1) / sum(ln(nullif(1 - probability, 0)))
) / count(*), 0)
