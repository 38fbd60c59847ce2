-- One row per sample of a run that has the document among its contexts, by its highest rank there, and per sample that
-- refers to it without, by the rule by which ids of documents and passages match.
with placed as (
    select
        sample_id,
        run_samples.ordinal,
        samples.question,
        samples.contexts,
        samples.context_ids,
        coalesce(
            list_has_any(list_transform(reference_context_ids, lambda id: $id_owners(id)[-1]), $id_owners($document))
            or list_contains(
                flatten(list_transform(reference_context_ids, lambda id: $id_owners(id))), $id_owners($document)[-1]
            ),
            false
        ) as is_referred_to,
        unnest(range(1, len(samples.contexts) + 1)) as context_rank
    from run_samples
    inner join samples using (sample_id, input_hash)
    where run_samples.run_id = $run_id
),

found as (
    select sample_id, ordinal, question, is_referred_to, context_rank
    from placed
    where coalesce(context_ids[context_rank], 'text ' || left(if(starts_with(contexts[context_rank], 'forgotten on '), right(contexts[context_rank], 17), md5(contexts[context_rank])), 12)) = $document
),

missed as (
    select sample_id, run_samples.ordinal, samples.question, true as is_referred_to
    from run_samples
    inner join samples using (sample_id, input_hash)
    where run_samples.run_id = $run_id
        and list_contains(samples.reference_context_ids, $document)
        and sample_id not in (
            select sample_id from sample_rankings where run_id = $run_id and list_has_any(matches, $id_owners($document))
        )
        and sample_id not in (select sample_id from found)
),

stated as (
    select statements.sample_id, statements.statement_id, statements.text, classifications.label, found.context_rank
    from found
    inner join (from attributions where run_id = $run_id) as attributions
        on attributions.sample_id = found.sample_id
        and list_contains(list_concat(attributions.context_ranks, attributions.joint_ranks), found.context_rank)
    inner join (from statements where run_id = $run_id) as statements
        on statements.sample_id = attributions.sample_id
        and statements.statement_id = attributions.statement_id
    left join (from classifications where run_id = $run_id) as classifications
        on classifications.sample_id = statements.sample_id
        and classifications.statement_id = statements.statement_id
),

supporting as (
    select
        sample_id,
        list(distinct statement_id order by statement_id) as statement_ids,
        list(distinct text) filter (where label = 'FP' and starts_with(statement_id, 'A')) as false_statements
    from stated
    group by sample_id
),

ranked as (
    select found.*, judged.useful, judged.reason
    from found
    left join (from context_verdicts where run_id = $run_id) as judged using (sample_id, context_rank)
),

gathered as (
    select
        sample_id,
        any_value(ordinal) as ordinal,
        any_value(question) as question,
        bool_or(is_referred_to) as is_referred_to,
        list(context_rank order by context_rank) as context_ranks,
        bool_or(useful) as useful,
        any_value(reason order by context_rank) as reason,
        any_value(statement_ids) as statement_ids,
        any_value(false_statements) as false_statements
    from ranked
    left join supporting using (sample_id)
    group by sample_id
    union all by name
    select sample_id, ordinal, question, is_referred_to from missed
)

from gathered
order by len(false_statements) desc nulls last, useful nulls last, ordinal
