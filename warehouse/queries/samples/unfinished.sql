-- A sample's outcomes are written in one batch with its verdicts, so one row says that it was judged.
with ended as (
    -- No reason at all (NULL) is a step that went well.
    select sample_id, coalesce(bool_or(reason in (select unnest($failures))), false) as failed
    from outcomes
    where run_id = $run_id
    group by sample_id
)
select distinct (run_samples.ordinal - 1) // $shard_size as number
from run_samples
left join ended using (sample_id)
anti join (select sample_id from forgotten_samples where run_id = $run_id) as gone using (sample_id)
where run_samples.run_id = $run_id and coalesce(ended.failed, true)
order by number
