-- The rows of the view earlier_support of open_runs: a name for a table of run_ids.
with thresholds as (
    select value as n_runs
    from cause_thresholds
    where threshold = 'earlier_runs'
),

-- Two updates to the same version are one; an update without a version is a separate one.
states as (
    select
        *,
        last_value(kb_version ignore nulls) over in_series as known_version,
        count(*) filter (where kb_name is not null and kb_version is null) over in_series as n_unnamed,
        count(*) filter (where kb_name is not null and coalesce(len(kb_changed), 0) = 0) over in_series as n_undocumented,
        row_number() over in_series as place
    from (
        select
            run_id, started_at, judge, language, coalesce(config ->> '$.plan', 'separate') as plan,
            kb_name, kb_version, kb_changed,
            case when suite is not null then 'suite ' || concat_ws('/', suite, variant) else 'dataset ' || coalesce(dataset, '') end as series
        from runs
        where kind in ('evaluation', 'collection')
    )
    window in_series as (
        partition by series order by started_at, run_id rows between unbounded preceding and current row
    )
),

pairs as (
    select
        states.run_id,
        states.series,
        states.place,
        earlier.run_id as earlier_run_id,
        earlier.place as earlier_place,
        (earlier.known_version, earlier.n_unnamed) is not distinct from (states.known_version, states.n_unnamed)
            as is_same_version,
        states.n_undocumented = earlier.n_undocumented as are_documents_known
    from states
    cross join thresholds
    inner join states as earlier
        on earlier.series = states.series
        and earlier.place < states.place
        and earlier.place >= states.place - thresholds.n_runs
        and earlier.judge = states.judge
        and earlier.language is not distinct from states.language
        and earlier.plan = states.plan
    where states.run_id in (select run_id from open_runs)
),

changes as (
    select states.series, states.place, states.run_id, updates.kb_version, unnest(updates.kb_changed) as document
    from (
        select run_id, kb_version, kb_changed
        from kb_updates
        union all
        select run_id, kb_version, kb_changed
        from runs
        where kb_name is not null and run_id not in (select run_id from kb_updates)
    ) as updates
    inner join states on states.run_id = updates.run_id
),

unsupported as (
    select distinct
        statements.run_id,
        statements.sample_id,
        statements.statement_id,
        -- Where texts were forgotten, that of one day is that of another day by the hash it ends in.
        case when starts_with(statements.text, 'forgotten on ') then right(statements.text, 17)
            else lower(trim(statements.text)) end
            as words,
        run_samples.input_hash
    from (from statements where source = 'ground_truth' and run_id in (select run_id from open_runs)) as statements
    inner join (from attributions where not supported and run_id in (select run_id from open_runs)) as attributions
        on attributions.run_id = statements.run_id
        and attributions.sample_id = statements.sample_id
        and attributions.statement_id = statements.statement_id
    inner join (from run_samples where run_id in (select run_id from open_runs)) as run_samples
        on run_samples.run_id = statements.run_id
        and run_samples.sample_id = statements.sample_id
),

-- Where the sample was the same its contexts were too, and show the judge's change. Few are left to look up. Nothing is there twice:
-- `distinct` keeps DuckDB from joining the other way round, beginning with all stored statements, and lets a filter on
-- run_id through.
candidates as (
    select distinct
        unsupported.*,
        pairs.* exclude (run_id),
        earlier.input_hash as earlier_input_hash
    from unsupported
    inner join pairs on pairs.run_id = unsupported.run_id
    inner join (from run_samples where run_id in (select earlier_run_id from pairs)) as earlier
        on earlier.run_id = pairs.earlier_run_id
        and earlier.sample_id = unsupported.sample_id
        and earlier.input_hash <> unsupported.input_hash
),

stated as (
    select distinct candidates.*, statements.statement_id as earlier_statement_id
    from candidates
    inner join (
        select
            run_id,
            sample_id,
            statement_id,
            case when starts_with(text, 'forgotten on ') then right(text, 17) else lower(trim(text)) end as words
        from statements
        where source = 'ground_truth' and run_id in (select earlier_run_id from pairs)
    ) as statements
        on statements.run_id = candidates.earlier_run_id
        and statements.sample_id = candidates.sample_id
        and statements.words = candidates.words
),

-- Texts by their hashes: they would fill the memory of a writer.
texts as (
    select
        sample_id,
        input_hash,
        context_ids,
        starts_with(question, 'forgotten on ') as is_forgotten,
        list_transform(
            contexts,
            lambda context: hash(
                case when starts_with(context, 'forgotten on ') then right(context, 17) else context end
            )
        ) as contexts
    from samples
    where rowid >= 0  -- as in sample_rankings
),

before as (
    select
        stated.* exclude (words, input_hash, earlier_input_hash, earlier_statement_id),
        here.contexts,
        there.contexts as earlier_contexts,
        there.context_ids as earlier_ids,
        -- Each context that was enough by itself, or the several that were together.
        unnest(list_concat(
            list_transform(attributions.context_ranks, lambda rank: [rank]),
            list_filter([coalesce(attributions.joint_ranks, [])], lambda ranks: len(ranks) > 0)
        )) as ranks
    from stated
    inner join (from attributions where supported and run_id in (select earlier_run_id from pairs)) as attributions
        on attributions.run_id = stated.earlier_run_id
        and attributions.sample_id = stated.sample_id
        and attributions.statement_id = stated.earlier_statement_id
    left join texts as here
        on here.sample_id = stated.sample_id
        and here.input_hash = stated.input_hash
    inner join texts as there
        on there.sample_id = stated.sample_id
        and there.input_hash = stated.earlier_input_hash
    -- A missing text is not evidence against a present one.
    where coalesce(here.is_forgotten = there.is_forgotten, true)
),

retrieved as (
    select
        * exclude (contexts, earlier_contexts, earlier_ids),
        list_transform(ranks, lambda rank: earlier_ids[rank]) as context_ids
    from before
    where not coalesce(
        list_has_all(contexts, list_transform(ranks, lambda rank: earlier_contexts[rank])), false
    )
),

changed as (
    select
        retrieved.*,
        arg_max({version: changes.kb_version, run_id: changes.run_id, document: changes.document}, changes.place)
            as last_change
    from retrieved
    left join changes
        on changes.series = retrieved.series
        and changes.place > retrieved.earlier_place
        and changes.place <= retrieved.place
        and list_contains(
            flatten(list_transform(retrieved.context_ids, lambda id: $id_owners(id))),
            $id_owners(changes.document)[-1]
        )
    group by all
),

weighed as (
    select
        *,
        case
            when is_same_version then 'retrieved_before'
            when not are_documents_known or len(list_filter(context_ids, lambda id: id is null)) > 0 then null
            when last_change is not null then 'truth_outdated'
            else 'retrieved_before'
        end as finding
    from changed
)

select
    run_id,
    sample_id,
    statement_id,
    finding,
    earlier_run_id,
    context_ids,
    case when finding = 'truth_outdated' then last_change.document end as changed_document,
    case when finding = 'truth_outdated' then last_change.version end as kb_version,
    case when finding = 'truth_outdated' then last_change.run_id end as update_run_id
from weighed
where finding is not null
qualify row_number() over (
    partition by run_id, sample_id, statement_id order by finding, earlier_place desc, ranks
) = 1
