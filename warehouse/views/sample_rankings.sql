-- One row per sample of a run: its retrieved contexts as two lists of gains in rank order, by its reference ids and by the
-- judge's verdicts. The two are never mixed: each metric reads one of them. A repeat keeps its rank and gains nothing, so
-- that it is neither counted twice nor hidden; a repeat is the same id where ids are compared, and the same text where the
-- judge was asked, because one document's id may stand on several pieces.
create or replace view sample_rankings as
with retrieved as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        samples.contexts,
        coalesce(samples.context_ids, []) as context_ids,
        coalesce(list_distinct(samples.reference_context_ids), []) as reference_ids,
        -- An empty list is a retrieval that found nothing; without a list retrieval is unknown.
        coalesce(len(coalesce(samples.contexts, samples.context_ids)) = 0, false) as retrieved_nothing,
        coalesce(responses.status = 'failed', false) as has_failed
    from run_samples
    left join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    left join responses
        on responses.run_id = run_samples.run_id
        and responses.sample_id = run_samples.sample_id
),

judged as (
    select run_id, sample_id, list(useful order by context_rank) as useful
    from context_verdicts
    group by run_id, sample_id
),

based as (
    select
        retrieved.*,
        coalesce(judged.useful, []) as useful,
        case
            when len(retrieved.reference_ids) = 0 then 'no_reference_ids'
            when len(retrieved.context_ids) > 0 or retrieved.retrieved_nothing then null
            when retrieved.has_failed then 'target_failed'
            else 'no_contexts'
        end as reason,
        case
            when rank_steps.reason is not null then rank_steps.reason
            when judged.useful is null and not retrieved.retrieved_nothing then 'no_contexts'
        end as useful_reason
    from retrieved
    inner join sample_steps as rank_steps
        on rank_steps.run_id = retrieved.run_id
        and rank_steps.sample_id = retrieved.sample_id
        and rank_steps.step = 'rank'
    left join judged
        on judged.run_id = retrieved.run_id
        and judged.sample_id = retrieved.sample_id
)

select
    run_id,
    sample_id,
    case
        when reason is null then list_transform(
            context_ids,
            lambda id, rank: coalesce(
                list_contains(reference_ids, id) and list_position(context_ids, id) = rank, false
            )::integer
        )
    end as gains,
    case when reason is null then len(reference_ids) end::bigint as n_relevant,
    reason,
    case
        when useful_reason is null then list_transform(
            useful,
            lambda is_useful, rank: (
                is_useful and coalesce(list_position(contexts, contexts[rank]) = rank, true)
            )::integer
        )
    end as useful_gains,
    useful_reason
from based;

comment on view sample_rankings is 'One row per sample of a run: its retrieved contexts as gains in rank order, by reference ids and by the judge.';
comment on column sample_rankings.run_id is 'Run.';
comment on column sample_rankings.sample_id is 'Sample.';
comment on column sample_rankings.gains is 'By reference ids, one entry per retrieved context in rank order: 1 relevant, 0 not, or a repeat of an id seen before; NULL when there is nothing to compare.';
comment on column sample_rankings.n_relevant is 'Distinct reference ids; NULL as gains.';
comment on column sample_rankings.reason is 'Why there are no gains, one of unscored_reasons; NULL when there are.';
comment on column sample_rankings.useful_gains is 'By the judge''s verdicts, one entry per retrieved context in rank order: 1 useful, 0 not, or a repeat of a text seen before; NULL when there are no verdicts.';
comment on column sample_rankings.useful_reason is 'Why there are no useful_gains, one of unscored_reasons; NULL when there are.';
