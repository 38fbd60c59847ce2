-- One row per thing that must never be: what is wrong, and how often it is there. The columns in braces are read from all
-- tables that steps write.
select 'verdicts, scores or calls of a run that is not on record' as what, count(*) as n
from (
    select distinct run_id from scores union select distinct run_id from llm_calls
    union select distinct run_id from run_samples union select distinct run_id from responses
    union {run_ids}
)
anti join runs using (run_id)
-- Of a run that was forgotten whole a call stays that another run rests on.
anti join (select run_id from forgotten where with_scores and sample_id is null) as gone using (run_id)
union all
select 'samples of a run whose texts are missing', count(*)
from run_samples
anti join samples using (sample_id, input_hash)
union all
select 'scores of a sample that the run has not', count(*)
from scores
anti join run_samples using (run_id, sample_id)
union all
select 'scores that are there twice', coalesce(sum(n - 1), 0)
from (select count(*) as n from scores group by run_id, sample_id, metric having count(*) > 1)
union all
select 'stored means that differ from the scores', count(*)
from stored_scores
left join (
    select run_id, metric, avg(value) as mean, count(value) as n_scored from scores group by run_id, metric
) as found using (run_id, metric)
where stored_scores.n_scored is distinct from found.n_scored
    or coalesce(abs(stored_scores.mean - found.mean) > 1e-9 * greatest(1, abs(found.mean)), stored_scores.mean is distinct from found.mean)
union all
select 'statements that are there twice', coalesce(sum(n - 1), 0)
from (select count(*) as n from statements group by run_id, sample_id, statement_id having count(*) > 1)
union all
select 'calls that are there twice', count(*) - count(distinct call_id)
from llm_calls
union all
select 'verdicts whose call is not on record', count(*)
from ({call_ids}) as used
anti join llm_calls using (call_id)
anti join journalled using (call_id)
where used.call_id is not null
union all
select 'calls whose prompt is not on record', count(*)
from (select distinct prompt_hash from llm_calls where prompt_hash is not null)
anti join prompts using (prompt_hash)
union all
select 'forgettings that were cut short', count(distinct forgetting_id)
from forgotten
where forgotten_at is null
union all
select 'batches that were written twice', count(*) - count(distinct batch_key)
from batches
