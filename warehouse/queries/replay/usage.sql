-- One row: what judging one sample of a run takes. A reply from the record counts for what it cost when it was sent.
select
    count(*) / greatest(count(distinct calls.sample_id), 1) as requests,
    coalesce(sum(coalesce(sent.cost_usd, calls.cost_usd, 0)), 0) / greatest(count(distinct calls.sample_id), 1) as cost_usd
from llm_calls as calls
left join llm_calls as sent on sent.call_id = calls.reused_call_id
where calls.run_id = $run_id and calls.sample_id is not null and calls.status in ('ok', 'cached')
