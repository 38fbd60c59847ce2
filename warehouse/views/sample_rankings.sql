-- One row per sample of a run: its retrieved contexts as lists of gains in rank order, by its reference ids and by the
-- judge's verdicts. The two are never mixed: each metric reads one of them. A repeat keeps its rank and gains nothing, so
-- that it is neither counted twice nor hidden; a repeat is the same id where ids are compared, and the same text where the
-- judge was asked, because one document's id may stand on several pieces. `queries/ids/owners.sql` says which ids match.
create or replace view sample_rankings as
with open_runs as (select run_id from runs),

id_matches as (
$id_matches
),

-- Contexts may be long, and joins hold all of them in memory. DuckDB reads 2,048 rows at once, and asks for twice the bytes
-- of their contexts in one piece, which a writer's limit of memory refuses; with a condition on rowid it does not.
hashed as (
    select sample_id, input_hash, list_transform(contexts, lambda text: hash(text)) as context_hashes
    from samples
    where rowid >= 0
),

retrieved as (
    select
        id_matches.*,
        samples.context_hashes,
        coalesce(responses.status = 'failed', false) as has_failed
    from id_matches
    left join run_samples
        on run_samples.run_id = id_matches.run_id
        and run_samples.sample_id = id_matches.sample_id
    left join hashed as samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
    left join responses
        on responses.run_id = id_matches.run_id
        and responses.sample_id = id_matches.sample_id
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
            when len(retrieved.wanted_ids) = 0 then 'no_reference_ids'
            when retrieved.are_apart then 'ids_do_not_match'
            when retrieved.is_known then null
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
    wanted_ids,
    matches,
    case
        when reason is null then list_transform(
            matches, lambda id, rank: (id is not null and list_position(matches, id) = rank)::integer
        )
    end as gains,
    case
        when reason is null then list_transform(
            matches,
            lambda id, rank: (id is not null and list_position(context_ids, context_ids[rank]) = rank)::integer
        )
    end as relevant,
    case when reason is null then len(wanted_ids) end::bigint as n_relevant,
    reason,
    case
        when useful_reason is null then list_transform(
            useful,
            lambda is_useful, rank: (
                is_useful and coalesce(list_position(context_hashes, context_hashes[rank]) = rank, true)
            )::integer
        )
    end as useful_gains,
    useful_reason
from based;

comment on view sample_rankings is 'One row per sample of a run: its retrieved contexts as gains in rank order, by reference ids and by the judge.';
comment on column sample_rankings.run_id is 'Run.';
comment on column sample_rankings.sample_id is 'Sample.';
comment on column sample_rankings.wanted_ids is 'The reference ids in the form that is compared; several that are of one retrieved or referenced document are that document''s id, once.';
comment on column sample_rankings.matches is 'One entry per retrieved context in rank order: the wanted id that its id matches; NULL where none.';
comment on column sample_rankings.gains is 'By reference ids, one entry per retrieved context in rank order: 1 for the first context that matches a wanted id, 0 for others; NULL when there is nothing to compare.';
comment on column sample_rankings.relevant is 'As gains, with 1 for every context that matches a wanted id, such as each passage of a document; 0 for a repeat of an id seen before.';
comment on column sample_rankings.n_relevant is 'Number of wanted_ids; NULL as gains.';
comment on column sample_rankings.reason is 'Why gains are missing, one of unscored_reasons; NULL when there are.';
comment on column sample_rankings.useful_gains is 'By the judge''s verdicts, one entry per retrieved context in rank order: 1 useful, 0 not, or a repeat of a text seen before; NULL when there are no verdicts.';
comment on column sample_rankings.useful_reason is 'Why useful_gains are missing, one of unscored_reasons; NULL when there are.';
