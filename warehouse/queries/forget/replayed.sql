-- The names under which replays asked a sample again: ID~old~1, ID~new~1, ID~dropped2~1, ...
select distinct sample_id
from run_samples
inner join runs using (run_id)
where runs.kind = 'replay'
    and starts_with(sample_id, $sample_id || '~')
    and regexp_full_match(substr(sample_id, length($sample_id) + 1), '~[a-z]+\d*~\d+')
order by sample_id
