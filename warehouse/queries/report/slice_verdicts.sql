select verdicts.* exclude (run_id)
from slice
inner join verdicts on verdicts.sample_id = slice.sample_id
where verdicts.run_id = $run_id
order by slice.ordinal, verdicts.step, verdicts.source, verdicts.ordinal, verdicts.context_rank, verdicts.criterion
