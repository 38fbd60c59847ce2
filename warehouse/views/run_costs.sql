-- One row per run and step: its requests to models and their cost. For an ended run they are stored; for a
-- running one they are computed here.
create or replace view run_costs as
with open_runs as (
    select run_id
    from runs
    where status = 'running'
)

select *
from stored_costs
where run_id not in (select run_id from open_runs)
union all by name
select * from ($costs);

comment on view run_costs is 'One row per run and step: calls, tokens and dollars.';
comment on column run_costs.run_id is 'Run.';
comment on column run_costs.step is 'Step; a request that splits answer and ground truth at once counts as extract_answer.';
comment on column run_costs.n_calls is 'Calls, sent or answered from the record.';
comment on column run_costs.n_requests is 'Calls that were sent to a model.';
comment on column run_costs.n_reused is 'Calls answered from the record.';
comment on column run_costs.n_failed is 'Calls that ended in an error or a refusal; they are among n_requests.';
comment on column run_costs.prompt_tokens is 'Prompt tokens of the calls sent.';
comment on column run_costs.completion_tokens is 'Completion tokens of the calls sent.';
comment on column run_costs.cost_usd is 'Dollars for the calls sent; NULL in all rows of a run that sent a call whose price is not known.';
comment on column run_costs.n_unpriced is 'Answered requests whose price is not known: priced_usd is too low by theirs.';
comment on column run_costs.cached_tokens is 'Tokens of prompt_tokens that the provider still had from earlier calls; they cost less.';
comment on column run_costs.n_estimated is 'Calls whose cost is an estimate from their texts, because the endpoint did not count their tokens.';
comment on column run_costs.priced_usd is 'Dollars for the calls sent whose price is known; all that is sure where n_unpriced is not 0.';
