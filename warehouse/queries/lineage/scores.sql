-- One row per verdict behind the scores of a sample, or behind one of them.
select *
from score_lineage
where run_id = $run_id and sample_id = $sample_id and ($metric is null or metric = $metric)
order by metric, step, source, ordinal, context_rank, criterion, statement
