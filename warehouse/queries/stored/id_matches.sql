-- One row per sample of open_runs (a name for a table of run_ids): which retrieved ids match its reference ids. Two ids
-- match where they are equal, or one is of a document and the other of a passage of it. The document is then what is
-- wanted: several reference ids that are of one retrieved or referenced document are one.
with texts as (
    select
        sample_id,
        input_hash,
        coalesce(context_ids, []) as context_ids,
        coalesce(list_filter(reference_context_ids, lambda id: id is not null), []) as reference_ids,
        -- An empty list is a retrieval that found nothing; without a list retrieval is unknown.
        coalesce(len(coalesce(contexts, context_ids)) = 0, false) as retrieved_nothing
    from samples
    where rowid >= 0  -- as in sample_rankings
),

referring as not materialized (
    select run_samples.run_id, texts.context_ids, texts.reference_ids
    from (from run_samples where run_id in (select run_id from open_runs)) as run_samples
    inner join texts
        on texts.sample_id = run_samples.sample_id
        and texts.input_hash = run_samples.input_hash
    where len(texts.reference_ids) > 0
),

retrieved as not materialized (
    select run_id, $id_owners(id) as owners
    from (select distinct run_id, unnest(context_ids) as id from referring)
    where id is not null
),

referred as not materialized (
    select run_id, $id_owners(id) as owners
    from (select distinct run_id, unnest(reference_ids) as id from referring)
),

-- One row per run. Unions and inner joins, for they let a filter on run_id through.
run_ids as (
    select run_id, bool_or(has_retrieved) and not bool_or(is_related) as are_apart
    from (
        select run_id, false as has_retrieved, false as is_related from open_runs
        union all
        select run_id, true, false from retrieved
        union all
        select retrieved.run_id, true, true
        from (select run_id, unnest(owners) as id from retrieved) as retrieved
        inner join (select run_id, owners[-1] as id from referred) as referred using (run_id, id)
        union all
        select retrieved.run_id, true, true
        from (select run_id, owners[-1] as id from retrieved) as retrieved
        inner join (select run_id, unnest(owners) as id from referred) as referred using (run_id, id)
    )
    group by run_id
),

owned as (
    select
        run_samples.run_id,
        run_samples.sample_id,
        run_samples.ordinal,
        coalesce(texts.retrieved_nothing, false) as retrieved_nothing,
        coalesce(len(texts.context_ids) > 0 or texts.retrieved_nothing, false) as is_known,
        -- Most datasets have no reference ids, and their ids need no reading.
        case
            when len(texts.reference_ids) > 0 then list_transform(texts.context_ids, lambda id: $id_owners(id))
            else []
        end as context_owners,
        list_transform(coalesce(texts.reference_ids, []), lambda id: $id_owners(id)) as reference_owners
    from (from run_samples where run_id in (select run_id from open_runs)) as run_samples
    left join texts
        on texts.sample_id = run_samples.sample_id
        and texts.input_hash = run_samples.input_hash
),

formed as (
    select
        *,
        list_transform(context_owners, lambda ids: ids[-1]) as context_ids,
        list_transform(reference_owners, lambda ids: ids[-1]) as reference_ids
    from owned
),

wanted as (
    select
        *,
        list_distinct(list_transform(
            reference_owners,
            lambda ids: list_filter(ids, lambda id: list_contains(list_concat(context_ids, reference_ids), id))[1]
        )) as wanted_ids
    from formed
)

select
    wanted.run_id,
    wanted.sample_id,
    wanted.ordinal,
    wanted.retrieved_nothing,
    wanted.is_known,
    wanted.context_ids,
    wanted.wanted_ids,
    list_transform(
        wanted.context_owners, lambda ids: list_filter(ids, lambda id: list_contains(wanted.wanted_ids, id))[1]
    ) as matches,
    run_ids.are_apart
from wanted
inner join run_ids using (run_id)
