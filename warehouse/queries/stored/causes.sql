-- The rows of the view sample_causes of open_runs: a name for a table of run_ids.
with earlier_support as (
$earlier_support
),

thresholds as (
    select
        max(value) filter (where threshold = 'minor_share') as minor_share,
        max(value) filter (where threshold = 'most_share') as most_share,
        max(value) filter (where threshold = 'top_ranks') as top_ranks,
        max(value) filter (where threshold = 'least_bytes') as least_bytes,
        max(value) filter (where threshold = 'split_share') as split_share
    from cause_thresholds
),

id_matches as (
$id_matches
),

retrievals as (
    select
        run_id,
        sample_id,
        ordinal,
        retrieved_nothing,
        case when len(wanted_ids) > 0 and is_known and not are_apart then list_has_all(matches, wanted_ids) end
            as has_all_references,
        list_filter(range(1, len(matches) + 1), lambda rank: matches[rank] is not null) as reference_ranks
    from id_matches
),

usefulness as (
    select run_id, sample_id, coalesce(list(context_rank) filter (where useful), []) as useful_ranks
    from context_verdicts
    where run_id in (select run_id from open_runs)
    group by run_id, sample_id
),

voted as (
    select run_id, sample_id, bool_or(not agrees) as is_split
    from votes
    where run_id in (select run_id from open_runs)
    group by run_id, sample_id, step, item_id
),

splits as (
    select run_id, sample_id, count(*) as n_voted, count(*) filter (where is_split) as n_split
    from voted
    group by run_id, sample_id
),

refusals as (
    select run_id, sample_id, bool_or(rating > 0) as is_noncommittal
    from grades
    where rubric = 'relevancy' and criterion = 'noncommittal' and run_id in (select run_id from open_runs)
    group by run_id, sample_id
),

-- Not a lack here: a text without statements, and contexts that a retrieval did not find.
ended as (
    select
        retrievals.run_id,
        retrievals.sample_id,
        retrievals.retrieved_nothing,
        steps.step,
        if(outcomes.step is null, 'cancelled', outcomes.reason) as reason
    from retrievals
    cross join (values ('classify'), ('attribute_answer'), ('attribute_ground_truth')) as steps (step)
    left join (from outcomes where run_id in (select run_id from open_runs)) as outcomes
        on outcomes.run_id = retrievals.run_id
        and outcomes.sample_id = retrievals.sample_id
        and outcomes.step = steps.step
),

lacks as (
    select
        ended.run_id,
        ended.sample_id,
        arg_min(ended.reason, coalesce(unscored_reasons.precedence, 99)) as reason,
        list(ended.step order by ended.step) as steps
    from ended
    left join unscored_reasons on unscored_reasons.reason = ended.reason
    where ended.reason <> 'no_statements' and not (ended.reason = 'no_contexts' and ended.retrieved_nothing)
    group by ended.run_id, ended.sample_id
),

judged as (
    select
        statements.run_id,
        statements.sample_id,
        statements.statement_id,
        statements.source,
        statements.ordinal,
        statements.text,
        classifications.label,
        attributions.supported,
        attributions.context_ranks,
        attributions.joint_ranks,
        list_concat(attributions.context_ranks, attributions.joint_ranks) as support_ranks,
        coalesce(attributions.turn_ranks, []) as turn_ranks,
        -- With no part of a context in it. What a context and a turn say together, the context was needed for.
        attributions.supported and len(attributions.turn_ranks) > 0 and len(support_ranks) = 0 as is_by_turns
    from (from statements where run_id in (select run_id from open_runs)) as statements
    left join (from classifications where run_id in (select run_id from open_runs)) as classifications
        on classifications.run_id = statements.run_id
        and classifications.sample_id = statements.sample_id
        and classifications.statement_id = statements.statement_id
    left join (from attributions where run_id in (select run_id from open_runs)) as attributions
        on attributions.run_id = statements.run_id
        and attributions.sample_id = statements.sample_id
        and attributions.statement_id = statements.statement_id
),

-- Windows and not joins: their partitions let a filter on run_id reach the tables.
compared as (
    select
        *,
        -- A turn of another conversation was retrieved in none.
        min(sample_id) filter (where supported and not coalesce(is_by_turns, false)) over same_words as first_supported,
        max(sample_id) filter (where supported and not coalesce(is_by_turns, false)) over same_words as last_supported,
        flatten(list(coalesce(support_ranks, [])) filter (where source = 'ground_truth' and supported) over same_sample)
            as relevant_ranks,
        bool_or(source = 'ground_truth' and len(turn_ranks) > 0) over same_sample as has_relevant_turns
    from judged
    window
        same_words as (
            partition by run_id, if(starts_with(text, 'forgotten on '), right(text, 17), lower(trim(text)))
        ),
        same_sample as (partition by run_id, sample_id)
),

placed as (
    select
        compared.*,
        -- Down to which rank one has to read for the support; a joint support is needed in full.
        coalesce(list_min(context_ranks), list_max(joint_ranks)) as first_rank,
        -- Of a statement that was forgotten its mark has the length.
        if(
            starts_with(text, 'forgotten on '),
            try_cast(regexp_extract(text, '\((\d+) bytes', 1) as bigint), strlen(trim(text))
        ) < thresholds.least_bytes as is_short,
        case
            when is_short then null
            when first_supported <> compared.sample_id then first_supported
            when last_supported <> compared.sample_id then last_supported
        end as elsewhere,
        retrievals.has_all_references,
        case when retrievals.has_all_references then retrievals.reference_ranks else usefulness.useful_ranks end
            as right_ranks,
        usefulness.useful_ranks,
        thresholds.top_ranks,
        earlier_support.finding,
        earlier_support.changed_document,
        if(finding = 'truth_outdated',
            changed_document || ' supported it in run ' || earlier_run_id || ', and '
            || coalesce('version ' || kb_version, 'an update') || ' (run ' || update_run_id || ') changed it',
            array_to_string(list_prepend('retrieved for it in run ' || earlier_run_id, earlier_support.context_ids), ', ')
        ) as earlier
    from compared
    inner join retrievals
        on retrievals.run_id = compared.run_id
        and retrievals.sample_id = compared.sample_id
    left join usefulness
        on usefulness.run_id = compared.run_id
        and usefulness.sample_id = compared.sample_id
    left join earlier_support
        on earlier_support.run_id = compared.run_id
        and earlier_support.sample_id = compared.sample_id
        and earlier_support.statement_id = compared.statement_id
    cross join thresholds
),

-- What each statement says of the bot, by the name of the rule it speaks for.
explained as (
    select
        *,
        case
            when source = 'answer' and label = 'TP' then if(coalesce(supported, false), 'good', 'unsupported_but_true')
            when source = 'answer' and coalesce(supported and list_has_any(support_ranks, relevant_ranks), false) then 'truth_incomplete'
            when source = 'answer' and is_by_turns then 'turn_repeated'
            when source = 'answer' then if(coalesce(supported, false), 'distracted', 'invented')
            when label = 'TP' then 'good'
            when is_by_turns then 'turn_passed_over'
            when coalesce(supported, false) then
                case
                    when not coalesce(first_rank > top_ranks, false)
                        or list_has_all(relevant_ranks, range(1, first_rank)::integer[]) then 'passed_over'
                    -- It was not out of the bot's sight where a turn has it as well.
                    when len(turn_ranks) > 0 and len(joint_ranks) = 0 then 'turn_passed_over'
                    else 'ranked_low'
                end
            -- "No." holds no fact to be found anywhere: it follows from the facts in the contexts, or the turns.
            when is_short and len(relevant_ranks) > 0 then 'passed_over'
            when is_short and has_relevant_turns then 'turn_passed_over'
            when not has_all_references then 'reference_not_retrieved'
            when elsewhere is not null then 'retrieved_elsewhere'
            when finding is not null then finding
            when has_all_references then 'references_lack_it'
            else 'nowhere'
        end as cause_of,
        coalesce(supported and not is_by_turns, false) as is_retrieved,
        coalesce(list_has_any(support_ranks, right_ranks), false) as is_right,
        coalesce(list_has_any(support_ranks, useful_ranks), useful_ranks is null) as is_useful
    from placed
),

counts as (
    select
        run_id,
        sample_id,
        count(*) filter (where source = 'answer') as n_answer,
        count(*) filter (where source = 'ground_truth') as n_truth,
        count(*) filter (where source = 'answer' and label = 'TP') as n_tp,
        count(*) filter (where source = 'ground_truth' and label <> 'TP') as n_missing,
        count(*) filter (where source = 'answer' and supported) as n_answer_supported,
        count(*) filter (where source = 'ground_truth' and supported) as n_truth_supported,
        count(*) filter (where source = 'answer' and is_retrieved) as n_answer_retrieved,
        count(*) filter (where source = 'ground_truth' and is_retrieved) as n_truth_retrieved,
        count(*) filter (where source = 'ground_truth' and is_retrieved and is_useful) as n_truth_useful,
        count(*) filter (where source = 'answer' and is_right) as n_answer_right,
        count(*) filter (where cause_of = 'reference_not_retrieved') as n_reference_not_retrieved,
        count(*) filter (where cause_of = 'retrieved_elsewhere') as n_retrieved_elsewhere,
        count(*) filter (where cause_of = 'truth_outdated') as n_truth_outdated,
        count(*) filter (where cause_of = 'retrieved_before') as n_retrieved_before,
        count(*) filter (where cause_of = 'references_lack_it') as n_references_lack_it,
        count(*) filter (where cause_of = 'nowhere') as n_nowhere,
        count(*) filter (where cause_of = 'ranked_low') as n_ranked_low,
        count(*) filter (where cause_of = 'passed_over') as n_passed_over,
        count(*) filter (where cause_of = 'invented') as n_invented,
        count(*) filter (where cause_of = 'distracted') as n_distracted,
        count(*) filter (where cause_of = 'turn_repeated') as n_turn_repeated,
        count(*) filter (where cause_of = 'turn_passed_over') as n_turn_passed_over,
        count(*) filter (where cause_of = 'truth_incomplete') as n_truth_incomplete,
        count(*) filter (where cause_of = 'unsupported_but_true') as n_unsupported_but_true,
        list({id: statement_id, source: source, cause_of: cause_of, supported: supported, is_retrieved: is_retrieved,
              is_right: is_right, elsewhere: elsewhere, earlier: earlier, turn_ranks: turn_ranks}
             order by source, ordinal) as statements
    from explained
    group by run_id, sample_id
),

weighed as (
    select
        retrievals.run_id,
        retrievals.sample_id,
        retrievals.ordinal,
        lacks.reason,
        lacks.steps,
        coalesce(counts.n_answer, 0) as n_answer,
        coalesce(counts.n_truth, 0) as n_truth,
        counts.* exclude (run_id, sample_id, n_answer, n_truth),
        coalesce(counts.n_missing > thresholds.minor_share * counts.n_truth, false) as is_incomplete,
        greatest(
            n_reference_not_retrieved, n_retrieved_elsewhere, n_truth_outdated, n_retrieved_before,
            n_references_lack_it, n_nowhere, n_ranked_low, n_passed_over, n_turn_passed_over
        ) as n_most_missing,
        coalesce(counts.n_answer, 0) = 0 or (coalesce(refusals.is_noncommittal, false) and counts.n_tp = 0)
            as is_refusal,
        splits.n_voted,
        splits.n_split,
        thresholds.minor_share,
        thresholds.most_share,
        thresholds.split_share
    from retrievals
    left join lacks
        on lacks.run_id = retrievals.run_id
        and lacks.sample_id = retrievals.sample_id
    left join counts
        on counts.run_id = retrievals.run_id
        and counts.sample_id = retrievals.sample_id
    left join refusals
        on refusals.run_id = retrievals.run_id
        and refusals.sample_id = retrievals.sample_id
    left join splits
        on splits.run_id = retrievals.run_id
        and splits.sample_id = retrievals.sample_id
    cross join thresholds
),

-- In the order of cause_rules; a test holds the two together.
held as (
    select
        *,
        list_filter([
            if(reason is not null, 'verdicts_missing', null),
            if(n_answer > 0 and n_truth > 0
                and ((n_missing = 0 and n_tp = 0) or (n_missing = n_truth and n_tp = n_answer)),
                'labels_contradict', null),
            if(n_answer > 0 and n_truth > 0 and n_missing = 0 and n_tp = n_answer
                and ((n_answer_supported = n_answer and n_truth_supported = 0)
                    or (n_answer_supported = 0 and n_truth_supported = n_truth)),
                'support_contradicts', null),
            if(n_truth_retrieved > 0 and n_truth_retrieved >= most_share * n_truth and n_truth_useful = 0,
                'usefulness_contradicts', null),
            if(n_split >= split_share * n_voted, 'votes_split', null),
            if(n_truth = 0 and is_refusal, 'truth_not_to_be_had', null),
            if(n_truth = 0 and n_answer > 0 and n_answer_retrieved >= most_share * n_answer, 'truth_silent', null),
            if(n_truth = 0 and n_answer > 0, 'answered_anyway', null),
            if(n_truth > 0 and n_truth_supported = 0 and n_missing = n_truth and n_tp = 0
                and n_answer > 0 and n_answer_right >= most_share * n_answer,
                'truth_unborne', null),
            if(is_refusal and n_truth_supported > 0 and n_truth_supported >= most_share * n_truth, 'refused', null),
            if(is_incomplete and n_reference_not_retrieved = n_most_missing, 'reference_not_retrieved', null),
            if(is_incomplete and n_retrieved_elsewhere = n_most_missing, 'retrieved_elsewhere', null),
            if(is_incomplete and n_truth_outdated = n_most_missing, 'truth_outdated', null),
            if(is_incomplete and n_retrieved_before = n_most_missing, 'retrieved_before', null),
            if(is_incomplete and n_references_lack_it = n_most_missing, 'references_lack_it', null),
            if(is_incomplete and n_nowhere = n_most_missing, 'nowhere', null),
            if(is_incomplete and n_ranked_low = n_most_missing, 'ranked_low', null),
            if(n_invented > minor_share * n_answer, 'invented', null),
            if(n_distracted > minor_share * n_answer, 'distracted', null),
            if(n_turn_repeated > minor_share * n_answer, 'turn_repeated', null),
            if(is_incomplete and n_passed_over = n_most_missing, 'passed_over', null),
            if(is_incomplete and n_turn_passed_over = n_most_missing, 'turn_passed_over', null),
            if(not is_incomplete and n_truth_incomplete > 0 and n_truth_incomplete >= most_share * n_answer,
                'truth_incomplete', null),
            if(n_unsupported_but_true > minor_share * n_answer, 'unsupported_but_true', null),
            'within_tolerance'
        ], lambda rule: rule is not null) as rules
    from weighed
),

-- Which statements the deciding rule counted, and of how many.
decided as (
    select
        *,
        rules[1] as rule,
        case
            when rules[1] in ('verdicts_missing', 'votes_split', 'truth_not_to_be_had', 'within_tolerance') then []
            when rules[1] in ('labels_contradict', 'support_contradicts') then statements
            when rules[1] = 'usefulness_contradicts'
                then list_filter(statements, lambda one: one.source = 'ground_truth' and one.is_retrieved)
            when rules[1] = 'refused'
                then list_filter(statements, lambda one: one.source = 'ground_truth' and one.supported)
            when rules[1] = 'truth_silent'
                then list_filter(statements, lambda one: one.source = 'answer' and one.is_retrieved)
            when rules[1] = 'answered_anyway' then list_filter(statements, lambda one: one.source = 'answer')
            when rules[1] = 'truth_unborne'
                then list_filter(statements, lambda one: one.source = 'answer' and one.is_right)
            else list_filter(statements, lambda one: one.cause_of = rules[1])
        end as deciding,
        case
            when rules[1] = 'votes_split' then n_voted
            when rules[1] in (
                'verdicts_missing', 'within_tolerance', 'truth_not_to_be_had', 'labels_contradict',
                'support_contradicts'
            ) then n_answer + n_truth
            when rules[1] in (
                'truth_silent', 'answered_anyway', 'truth_unborne', 'invented', 'distracted', 'turn_repeated',
                'truth_incomplete', 'unsupported_but_true'
            ) then n_answer
            else n_truth
        end as n_judged
    from held
),

listed as (
    select
        *,
        list_transform(deciding, lambda one: one.id) as statement_ids,
        if(rule = 'votes_split', n_split, len(deciding))::bigint as n_deciding,
        case
            when rule = 'retrieved_elsewhere'
                then 'found for '
                || array_to_string(list_distinct(list_transform(deciding, lambda one: one.elsewhere)), ', ')
            when rule in ('turn_repeated', 'turn_passed_over')
                then 'said in T' || nullif(array_to_string(
                    list_sort(list_distinct(flatten(list_transform(deciding, lambda one: one.turn_ranks)))), ', T'
                ), '')
            when rule in ('truth_outdated', 'retrieved_before')
                then array_to_string(list_sort(list_distinct(list_transform(deciding, lambda one: one.earlier))), '; ')
        end as found
    from decided
)

select
    listed.run_id,
    listed.sample_id,
    listed.ordinal,
    cause_rules.cause,
    listed.rule,
    listed.reason,
    case
        when listed.rule = 'verdicts_missing' then listed.reason || ': ' || array_to_string(listed.steps, ', ')
        when listed.rule = 'votes_split' then listed.n_deciding || ' of ' || listed.n_judged || ' verdicts'
        when listed.rule not in ('within_tolerance', 'truth_not_to_be_had') then
            listed.n_deciding || ' of ' || listed.n_judged || ': ' || array_to_string(listed.statement_ids, ', ')
            || coalesce('; ' || listed.found, '')
    end as evidence,
    listed.n_deciding,
    listed.n_judged,
    listed.statement_ids,
    -- The last one always holds, and without verdicts no other one matters.
    if(listed.rule = 'verdicts_missing', [], listed.rules[2:-2]) as other_rules
from listed
inner join cause_rules on cause_rules.rule = listed.rule
