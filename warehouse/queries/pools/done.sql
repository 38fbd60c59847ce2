-- How many samples of a run are judged, counted as in samples/unfinished. One row.
select count(*) as n
from (
    select sample_id
    from outcomes
    where run_id = $run_id
    group by sample_id
    having not coalesce(bool_or(reason in (select unnest($failures))), false)
)
