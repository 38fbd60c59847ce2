-- One row per document over these runs: its effect in the samples it was retrieved for, and in samples that refer to it.
-- A document is what has one id; of contexts without ids each text is one. What a document does in a sample it does there
-- once, in however many of its parts. A sample that several runs have counts in each; n_samples counts it once.
with open_runs as (select unnest($run_ids::varchar[]) as run_id),

-- In place of the view sample_rankings, which a join with some runs would compute for all.
id_matches as (
$id_matches
),

placed as (
    select
        run_samples.run_id,
        sample_id,
        samples.contexts,
        samples.context_ids,
        unnest(range(1, len(samples.contexts) + 1)) as context_rank
    from run_samples
    inner join samples using (sample_id, input_hash)
    where run_samples.run_id in (select run_id from open_runs)
),

named as (
    select
        run_id,
        sample_id,
        context_rank,
        coalesce(context_ids[context_rank], 'text ' || left(if(starts_with(contexts[context_rank], 'forgotten on '), right(contexts[context_rank], 17), md5(contexts[context_rank])), 12)) as document,
        contains(lower(document || ' ' || if($words = '', '', contexts[context_rank])), $words) as has_words
    from placed
),

cited as (
    select run_id, sample_id, statement_id, unnest(list_concat(context_ranks, joint_ranks)) as context_rank
    from attributions
    where run_id in (select run_id from open_runs)
),

labelled as (
    select run_id, sample_id, statement_id, label
    from classifications
    where run_id in (select run_id from open_runs)
),

supporting as (
    select
        run_id,
        sample_id,
        context_rank,
        bool_or(starts_with(statement_id, 'G')) as supports_truth,
        bool_or(starts_with(statement_id, 'A') and label = 'FP') as misleads
    from cited
    left join labelled using (run_id, sample_id, statement_id)
    group by run_id, sample_id, context_rank
),

judged as (
    select run_id, sample_id, context_rank, useful
    from context_verdicts
    where run_id in (select run_id from open_runs)
),

retrieved as (
    select
        run_id,
        sample_id,
        document,
        min(context_rank) as context_rank,
        bool_or(useful) as useful,
        coalesce(bool_or(supports_truth), false) as supports_truth,
        coalesce(bool_or(misleads), false) as misleads,
        bool_or(has_words) as has_words
    from named
    left join judged using (run_id, sample_id, context_rank)
    left join supporting using (run_id, sample_id, context_rank)
    group by run_id, sample_id, document
),

-- A document is found as well where one of its passages was retrieved, by the rule of the metrics.
referring as (
    select
        run_samples.run_id,
        sample_id,
        unnest(list_distinct(samples.reference_context_ids)) as document,
        list_has_any(rankings.matches, $id_owners(document)) as is_found
    from run_samples
    inner join samples using (sample_id, input_hash)
    left join id_matches as rankings using (run_id, sample_id)
    where run_samples.run_id in (select run_id from open_runs)
)

select
    document,
    count(context_rank) as n_retrieved,
    count(distinct sample_id) filter (where context_rank is not null) as n_samples,
    min(context_rank) as first_rank,
    median(context_rank) as median_rank,
    max(context_rank) as last_rank,
    count(useful) as n_judged,
    count(*) filter (where useful) as n_useful,
    count(distinct sample_id) filter (where useful is not null) as n_samples_judged,
    count(*) filter (where supports_truth) as n_supports_truth,
    count(*) filter (where misleads) as n_misleads,
    count(is_found) as n_referred_to,
    count(*) filter (where is_found) as n_found
from retrieved
full join referring using (run_id, sample_id, document)
group by document
having coalesce(bool_or(has_words), contains(lower(document), $words))
order by document
