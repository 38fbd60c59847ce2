-- One row per verdict that has changed, on a statement, context or rating that both runs have: matched by its
-- text, and one that is there twice by its place among its like. Each run is named by itself: a filter on one run
-- reaches the tables. `base_id` and `candidate_id` are the statement's, the context's rank, or the rating's name.
with stated as (
    select false as of_candidate, sample_id, statement_id, source, ordinal, text from statements where run_id = $base
    union all
    select true, sample_id, statement_id, source, ordinal, text from statements where run_id = $candidate
),

-- Where texts of one of the runs were forgotten, statements are matched by the hash that a mark ends in.
recorded as (
    select count(*) > 0 as by_hash
    from forgotten
    where run_id in ($base, $candidate)
),

placed as (
    select
        *,
        -- As a pattern takes long, it is for texts that have something to be replaced.
        case
            when starts_with(text, 'forgotten on ') then left(right(text, 17), 16)
            when by_hash then left(md5(lower(trim(regexp_replace(text, '\s+', ' ', 'g')))), 16)
            when contains(text, '  ') or contains(text, chr(9)) or contains(text, chr(10)) or contains(text, chr(13))
                then trim(regexp_replace(text, '\s+', ' ', 'g'))
            else trim(text)
        end as item,
        row_number() over (partition by of_candidate, sample_id, source, item order by ordinal) as place
    from stated
    cross join recorded
),

matched as (
    select
        sample_id,
        source,
        base.statement_id as base_id,
        candidate.statement_id as candidate_id
    from (from placed where not of_candidate) as base
    inner join (from placed where of_candidate) as candidate using (sample_id, source, item, place)
),

labelled as (
    select sample_id, 'classify' as step, source, base_id, candidate_id, base.label as base, candidate.label as candidate
    from matched
    inner join (select sample_id, statement_id as base_id, label from classifications where run_id = $base) as base
        using (sample_id, base_id)
    inner join
        (select sample_id, statement_id as candidate_id, label from classifications where run_id = $candidate) as candidate
        using (sample_id, candidate_id)
    where base.label <> candidate.label
),

supported as (
    select
        sample_id, 'attribute_' || source as step, source, base_id, candidate_id,
        base.supported as base, candidate.supported as candidate
    from matched
    inner join (select sample_id, statement_id as base_id, supported from attributions where run_id = $base) as base
        using (sample_id, base_id)
    inner join
        (select sample_id, statement_id as candidate_id, supported from attributions where run_id = $candidate) as candidate
        using (sample_id, candidate_id)
    where base.supported <> candidate.supported
),

useful as (
    select false as of_candidate, sample_id, context_rank, useful from context_verdicts where run_id = $base
    union all
    select true, sample_id, context_rank, useful from context_verdicts where run_id = $candidate
),

contents as (
    select sample_id, base.input_hash as base_hash, candidate.input_hash as candidate_hash
    from (select sample_id, input_hash from run_samples where run_id = $base) as base
    inner join (select sample_id, input_hash from run_samples where run_id = $candidate) as candidate using (sample_id)
),

-- Contexts are the same by rank where all texts are the same; only elsewhere the texts are read.
ranked as (
    select useful.*, context_rank::varchar as item, 1 as place
    from useful
    inner join contents using (sample_id)
    where base_hash = candidate_hash
    union all
    select
        useful.*,
        if(
            starts_with(samples.contexts[context_rank], 'forgotten on '),
            left(right(samples.contexts[context_rank], 17), 16), left(md5(samples.contexts[context_rank]), 16)
        ) as item,
        row_number() over (partition by of_candidate, sample_id, item order by context_rank) as place
    from useful
    inner join contents using (sample_id)
    inner join samples
        on samples.sample_id = contents.sample_id
        and samples.input_hash = if(useful.of_candidate, candidate_hash, base_hash)
    where base_hash <> candidate_hash
),

usable as (
    select
        sample_id,
        base.context_rank as base_id, candidate.context_rank as candidate_id, base.useful as base, candidate.useful as candidate
    from (from ranked where not of_candidate) as base
    inner join (from ranked where of_candidate) as candidate using (sample_id, item, place)
    where base.useful <> candidate.useful
),

rated as (
    select
        sample_id, 'grade_' || rubric as step, rubric || ': ' || criterion as item,
        base.rating as base, candidate.rating as candidate, scale_max
    from (select sample_id, rubric, criterion, rating from grades where run_id = $base) as base
    inner join (select sample_id, rubric, criterion, rating, scale_max from grades where run_id = $candidate) as candidate
        using (sample_id, rubric, criterion)
    where base.rating <> candidate.rating and rubric not in ('relevancy', 'tool_calls', 'result_sets')
)

select sample_id, step, source, base_id, candidate_id, base, candidate, candidate = 'TP' as is_better
from labelled
union all
select
    sample_id, step, source, base_id, candidate_id,
    if(base, 'supported', 'unsupported'), if(candidate, 'supported', 'unsupported'), candidate
from supported
union all
select
    sample_id, 'rank', 'context', base_id::varchar, candidate_id::varchar,
    if(base, 'useful', 'not useful'), if(candidate, 'useful', 'not useful'), candidate
from usable
union all
select
    sample_id, step, 'rating', item, item, format('{:g} of {:g}', base, scale_max), format('{:g} of {:g}', candidate, scale_max),
    candidate > base
from rated
order by all
