insert into run_samples by name
select $again_run_id as run_id, sample_id, input_hash, row_number() over (order by ordinal) as ordinal, metadata,
    cluster
from run_samples
where run_id = $run_id and sample_id in (select sample_id from picked_samples)
order by ordinal
