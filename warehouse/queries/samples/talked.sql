-- A row where a run has a sample with a conversation.
select 1 as found
from run_samples
semi join (select sample_id, input_hash from samples where conversation is not null) as talked using (sample_id, input_hash)
where run_samples.run_id = $run_id
limit 1
