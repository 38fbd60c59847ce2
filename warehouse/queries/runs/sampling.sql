-- One row: of how many samples of the dataset of a run with a budget how many were picked, and what their signals were.
select
    (select count(*) from sample_picks where run_id = $run_id) as n,
    (select count(*) from sample_picks where run_id = $run_id and picked) as n_picked,
    greatest(count(*), 1) as n_signals,
    count(*) filter (where origin <> 'lexical') as n_earlier
from sample_signals
where run_id = $run_id
