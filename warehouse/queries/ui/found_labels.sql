-- One row per sample of a wanted whose verdicts people have labelled: how many verdicts have a label.
select sample_id, count(distinct (step, statement_id, context_rank)) as n_labelled
from reviewed_verdicts
where run_id = $run_id and sample_id in (select sample_id from wanted)
group by sample_id
