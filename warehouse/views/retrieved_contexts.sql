-- One row per context that was retrieved for a sample of a run, with what was made of it.
create or replace view retrieved_contexts as
with placed as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        samples.contexts,
        samples.context_ids,
        unnest(range(1, len(samples.contexts) + 1)) as context_rank
    from run_samples
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
),

cited as (
    select run_id, sample_id, statement_id, label, unnest(support_ranks) as context_rank
    from statement_verdicts
),

supporting as (
    select
        run_id,
        sample_id,
        context_rank,
        list(statement_id order by statement_id) as statement_ids,
        count(*) filter (where label = 'FP') as n_false
    from cited
    group by run_id, sample_id, context_rank
)

select
    placed.run_id,
    placed.sample_id,
    placed.context_rank,
    placed.context_ids[placed.context_rank] as context_id,
    placed.contexts[placed.context_rank] as text,
    context_verdicts.useful,
    coalesce(supporting.statement_ids, []) as statement_ids,
    coalesce(supporting.n_false, 0) as n_false
from placed
left join context_verdicts
    on context_verdicts.run_id = placed.run_id
    and context_verdicts.sample_id = placed.sample_id
    and context_verdicts.context_rank = placed.context_rank
left join supporting
    on supporting.run_id = placed.run_id
    and supporting.sample_id = placed.sample_id
    and supporting.context_rank = placed.context_rank;

comment on view retrieved_contexts is 'One row per context that was retrieved for a sample of a run, with what was made of it.';
comment on column retrieved_contexts.run_id is 'Run.';
comment on column retrieved_contexts.sample_id is 'Sample.';
comment on column retrieved_contexts.context_rank is 'Rank of the context, from 1.';
comment on column retrieved_contexts.context_id is 'Its id; NULL when it has none.';
comment on column retrieved_contexts.text is 'The context.';
comment on column retrieved_contexts.useful is 'Whether it is useful for reaching the ground truth; NULL when that was not judged.';
comment on column retrieved_contexts.statement_ids is 'Statements that it supports, alone or with others: A1, A2, … of the answer, G1, G2, … of the ground truth.';
comment on column retrieved_contexts.n_false is 'FP statements of the answer among them: what the answer got wrong from here.';
