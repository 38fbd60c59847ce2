-- One row per context that was judged by itself.
select verdicts.sample_id, verdicts.context_rank, verdicts.useful, verdicts.reason, verdicts.call_id
from slice
inner join verdicts on verdicts.sample_id = slice.sample_id
where verdicts.run_id = $run_id and verdicts.step = 'rank'
