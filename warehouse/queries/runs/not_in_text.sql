-- One row: statements that are hardly in the texts they were split from, and the samples that have them.
select
    count(distinct sample_id) as n_samples,
    sum(len(regexp_extract_all(split_part(detail, $words, 2), '[AG][0-9]+'))) as n_statements
from outcomes
where run_id = $run_id and contains(detail, $words)
