-- One row per run and step: what it asked of models and what that cost.
create or replace view run_costs as
with counted as (
    select
        run_id,
        step,
        count(*) filter (where status = 'cached' or reused_call_id is null) as n_calls,
        -- A reply that came together with others in one call has a row of its own, and no request.
        count(*) filter (where status <> 'cached' and reused_call_id is null) as n_requests,
        count(*) filter (where status = 'cached') as n_reused,
        count(*) filter (where status in ('error', 'refused')) as n_failed,
        -- A reused reply was paid for once, by the call that first got it.
        coalesce(sum(prompt_tokens) filter (where status <> 'cached'), 0)::bigint as prompt_tokens,
        coalesce(sum(cached_tokens) filter (where status <> 'cached'), 0)::bigint as cached_tokens,
        coalesce(sum(completion_tokens) filter (where status <> 'cached'), 0)::bigint as completion_tokens,
        coalesce(sum(cost_usd) filter (where status <> 'cached'), 0) as priced_usd,
        count(*) filter (where status = 'ok' and cost_usd is null) as n_unpriced,
        -- The endpoint counts no tokens: what the call cost was estimated from its texts.
        count(*) filter (where cost_usd > 0 and coalesce(prompt_tokens, 0) = 0) as n_estimated
    from llm_calls
    group by run_id, step
)

select
    run_id,
    step,
    n_calls,
    n_requests,
    n_reused,
    n_failed,
    prompt_tokens,
    completion_tokens,
    -- Of the whole run: a sum over its steps would pass over a NULL and say too little, or nothing at all.
    case when sum(n_unpriced) over (partition by run_id) = 0 then priced_usd end as cost_usd,
    n_unpriced,
    cached_tokens,
    n_estimated,
    priced_usd
from counted;

comment on view run_costs is 'One row per run and step: calls, tokens and dollars.';
comment on column run_costs.run_id is 'Run.';
comment on column run_costs.step is 'Step.';
comment on column run_costs.n_calls is 'Calls, sent or answered from the record.';
comment on column run_costs.n_requests is 'Calls that were sent to a model.';
comment on column run_costs.n_reused is 'Calls answered from the record.';
comment on column run_costs.n_failed is 'Calls that ended in an error or a refusal; they are among n_requests.';
comment on column run_costs.prompt_tokens is 'Prompt tokens of the calls sent.';
comment on column run_costs.completion_tokens is 'Completion tokens of the calls sent.';
comment on column run_costs.cost_usd is 'Dollars for the calls sent; NULL in all rows of a run that sent a call whose price is not known.';
comment on column run_costs.n_unpriced is 'Answered requests whose price is not known: priced_usd is too low by theirs.';
comment on column run_costs.cached_tokens is 'Those of prompt_tokens that the provider still had from earlier calls; they cost less.';
comment on column run_costs.n_estimated is 'Calls whose cost is an estimate from their texts, because the endpoint did not count their tokens.';
comment on column run_costs.priced_usd is 'Dollars for the calls sent whose price is known; all that is sure where n_unpriced is not 0.';
