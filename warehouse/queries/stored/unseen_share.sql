-- The share of the samples with a metric that may differ from their signals, or have moved, with a chance of 2.5 % that
-- none was judged: as of a plain run with the effective number of judged samples (Kish 1965, Survey Sampling). A run's
-- picks may be many, and few of them have the metric. Where none has it, all may differ.
coalesce(1 - pow(0.025, sum(weight * weight) / pow(sum(weight), 2)), 1)
