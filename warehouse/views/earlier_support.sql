-- One row per ground-truth statement that no retrieved context supports in a run, though contexts that an earlier run of
-- its series retrieved for the same sample did: what was found before is evidence of what the knowledge base holds.
--
-- Evidence stands until an update may have changed it: a document does until an update names it, all of them do until an
-- update says nothing of what it changed. A context that is there in both runs tells of the judge and not of retrieval.
create or replace view earlier_support as
with thresholds as (
    select value as n_runs
    from cause_thresholds
    where threshold = 'earlier_runs'
),

-- Two updates to the same version are one; an update without a version is one of its own.
states as (
    select
        *,
        last_value(kb_version ignore nulls) over in_series as known_version,
        count(*) filter (where kb_name is not null and kb_version is null) over in_series as n_unnamed,
        count(*) filter (where kb_name is not null and coalesce(len(kb_changed), 0) = 0) over in_series as n_untold,
        row_number() over in_series as place
    from (
        select
            run_id, started_at, judge, language, coalesce(config ->> '$.plan', 'separate') as plan,
            kb_name, kb_version, kb_changed,
            case when suite is not null then 'suite ' || suite else 'dataset ' || coalesce(dataset, '') end as series
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
        states.n_untold = earlier.n_untold as is_told
    from states
    cross join thresholds
    inner join states as earlier
        on earlier.series = states.series
        and earlier.place < states.place
        and earlier.place >= states.place - thresholds.n_runs
        and earlier.judge = states.judge
        and earlier.language is not distinct from states.language
        and earlier.plan = states.plan
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
    select
        statements.run_id,
        statements.sample_id,
        statements.statement_id,
        statements.text,
        samples.contexts
    from statements
    inner join attributions
        on attributions.run_id = statements.run_id
        and attributions.sample_id = statements.sample_id
        and attributions.statement_id = statements.statement_id
    inner join run_samples
        on run_samples.run_id = statements.run_id
        and run_samples.sample_id = statements.sample_id
    left join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    where statements.source = 'ground_truth' and not attributions.supported
),

before as (
    select
        unsupported.* exclude (text),
        pairs.* exclude (run_id),
        samples.contexts as earlier_contexts,
        samples.context_ids as earlier_ids,
        -- Each context that was enough by itself, or the several that were together.
        unnest(list_concat(
            list_transform(attributions.context_ranks, lambda rank: [rank]),
            list_filter([coalesce(attributions.joint_ranks, [])], lambda ranks: len(ranks) > 0)
        )) as ranks
    from unsupported
    inner join pairs on pairs.run_id = unsupported.run_id
    inner join statements
        on statements.run_id = pairs.earlier_run_id
        and statements.sample_id = unsupported.sample_id
        and lower(trim(statements.text)) = lower(trim(unsupported.text))
        and statements.source = 'ground_truth'
    inner join attributions
        on attributions.run_id = statements.run_id
        and attributions.sample_id = statements.sample_id
        and attributions.statement_id = statements.statement_id
        and attributions.supported
    inner join run_samples
        on run_samples.run_id = statements.run_id
        and run_samples.sample_id = statements.sample_id
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
),

retrieved as (
    select
        *,
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
        and len(list_filter(
            retrieved.context_ids,
            -- A context's id is its document's own, or goes on from it with one of these.
            lambda id: id = changes.document
                or (starts_with(id, changes.document) and id[len(changes.document) + 1] in ('#', ':', '/', '|', '@'))
        )) > 0
    group by all
),

weighed as (
    select
        *,
        case
            when is_same_version then 'retrieved_before'
            when not is_told or len(list_filter(context_ids, lambda id: id is null)) > 0 then null
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
) = 1;

comment on view earlier_support is 'One row per ground-truth statement that no context supports in a run, though contexts that an earlier run retrieved for the sample did.';
comment on column earlier_support.run_id is 'Run.';
comment on column earlier_support.sample_id is 'Sample.';
comment on column earlier_support.statement_id is 'Statement of the ground truth: G1, G2, …';
comment on column earlier_support.finding is 'retrieved_before: nothing on record says that the knowledge base has lost it since; truth_outdated: an update since named a document that supported it.';
comment on column earlier_support.earlier_run_id is 'The latest such run of the same series, by the same judge and in the same language.';
comment on column earlier_support.context_ids is 'Ids of the contexts that supported the statement there; NULL, or NULL in it, where a context has none.';
comment on column earlier_support.changed_document is 'Document that the update named; NULL when none did.';
comment on column earlier_support.kb_version is 'Version of the knowledge base that the update brought; NULL when there was none, or it had no version.';
comment on column earlier_support.update_run_id is 'Run that answered the update; NULL when there was none.';
