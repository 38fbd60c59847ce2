-- One run at a time: a filter on one run reaches the tables behind the view's windows, one on two runs does not. Nor does
-- a join with the wanted samples, but a single one given as a value does.
with of_pair as (
    select * from statement_verdicts where run_id = $base and ($only is null or sample_id = $only)
    union all
    select * from statement_verdicts where run_id = $candidate and ($only is null or sample_id = $only)
)

select
    sample_id, run_id = $candidate as of_candidate, source, statement_id, text, label, label_reason, supported, context_ranks,
    joint_ranks, turn_ranks, support_reason
from of_pair
inner join wanted using (sample_id)
order by sample_id, of_candidate, source, ordinal
