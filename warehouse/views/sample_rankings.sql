-- One row per sample of a run: its retrieved contexts as a list of gains in rank order. Gains come from comparing ids where
-- both the sample and its contexts carry them, else from the judge's verdicts. A context whose id stood at an earlier rank
-- keeps its rank and gains nothing, so that a repeat is neither counted twice nor hidden.
create or replace view sample_rankings as
with ids as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        samples.context_ids,
        list_distinct(samples.reference_context_ids) as reference_ids,
        coalesce(len(samples.reference_context_ids) > 0, false) as has_reference_ids,
        -- An empty list is a retrieval that found nothing; no list at all tells nothing.
        coalesce(len(coalesce(samples.contexts, samples.context_ids)) = 0, false) as retrieved_nothing
    from run_samples
    left join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
),

judged as (
    select run_id, sample_id, list(useful order by context_rank) as useful
    from context_verdicts
    group by run_id, sample_id
),

based as (
    select
        ids.run_id,
        ids.sample_id,
        coalesce(ids.context_ids, []) as context_ids,
        ids.reference_ids,
        ids.has_reference_ids,
        coalesce(judged.useful, []) as useful,
        rank_steps.is_recorded,
        rank_steps.reason,
        case
            when ids.has_reference_ids and (len(ids.context_ids) > 0 or ids.retrieved_nothing) then 'reference_ids'
            when rank_steps.reason is null and (judged.useful is not null or ids.retrieved_nothing)
                then 'context_verdicts'
        end as basis
    from ids
    inner join sample_steps as rank_steps
        on rank_steps.run_id = ids.run_id
        and rank_steps.sample_id = ids.sample_id
        and rank_steps.step = 'rank'
    left join judged
        on judged.run_id = ids.run_id
        and judged.sample_id = ids.sample_id
),

ranked as (
    select
        *,
        case basis
            when 'reference_ids' then list_transform(
                context_ids,
                lambda id, rank: coalesce(
                    list_contains(reference_ids, id) and list_position(context_ids, id) = rank, false
                )::integer
            )
            when 'context_verdicts' then list_transform(
                useful,
                lambda is_useful, rank: (
                    is_useful
                    and (context_ids[rank] is null or list_position(context_ids, context_ids[rank]) = rank)
                )::integer
            )
        end as gains
    from based
)

select
    run_id,
    sample_id,
    basis,
    gains,
    case basis when 'reference_ids' then len(reference_ids) else coalesce(list_sum(gains), 0) end::bigint as n_relevant,
    case
        when basis is not null then null
        -- There is something to compare with, so what lacks is retrieved contexts that carry an id.
        when has_reference_ids and (not is_recorded or reason = 'no_ground_truth') then 'no_contexts'
        when reason = 'no_ground_truth' then 'no_reference_ids'
        else coalesce(reason, 'no_contexts')
    end as reason
from ranked;

comment on view sample_rankings is 'One row per sample of a run: its retrieved contexts as gains in rank order.';
comment on column sample_rankings.run_id is 'Run.';
comment on column sample_rankings.sample_id is 'Sample.';
comment on column sample_rankings.basis is 'Where the gains come from: reference_ids (ids compared, no judge) or context_verdicts; NULL when neither is there.';
comment on column sample_rankings.gains is 'One entry per retrieved context in rank order: 1 relevant, 0 not, or a repeat of an id seen before; NULL when there is no basis.';
comment on column sample_rankings.n_relevant is 'Distinct reference ids, or useful contexts among all retrieved ones; NULL when there is no basis.';
comment on column sample_rankings.reason is 'Why there is no ranking, one of unscored_reasons; NULL when there is one.';
