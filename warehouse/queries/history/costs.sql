select run_id, sum(n_requests)::bigint as n_requests, sum(n_reused)::bigint as n_reused,
       sum(n_failed)::bigint as n_failed, sum(prompt_tokens + completion_tokens)::bigint as tokens,
       sum(cost_usd) as cost_usd, sum(priced_usd) as priced_usd, sum(n_unpriced)::bigint as n_unpriced
from run_costs
where run_id in (select run_id from wanted)
group by run_id
