-- One row per sample and metric of a run that is being scored, before it is looked at.
create temp table metric_scores (metric varchar, sample_id varchar, value double, unscored_reason varchar)
