-- The likest of however many there are, in the order of the dataset where none is like it.
select sample_id
from run_samples
where run_id = $run_id
order by round(jaro_winkler_similarity(sample_id, $sample_id), 1) desc, ordinal
limit 50
