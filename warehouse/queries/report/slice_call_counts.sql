select slice.sample_id, slice.ordinal, count(llm_calls.sample_id) as n_calls
from slice
left join llm_calls
    on llm_calls.run_id = $run_id
    and llm_calls.sample_id = slice.sample_id
group by slice.sample_id, slice.ordinal
order by slice.ordinal, slice.sample_id
