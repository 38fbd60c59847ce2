select
    sample_id, run_id = $candidate as of_candidate, rubric || ': ' || criterion as text, rating, scale_max, reason
from grades
inner join wanted using (sample_id)
where run_id in ($base, $candidate)
order by sample_id, of_candidate, text
