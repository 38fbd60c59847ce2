-- One row per sample of a run that fits what is asked for, in the order that is asked for. What is not asked for is not
-- read: a test of a parameter alone empties its part of the query before anything is scanned.
with here as (
    select
        run_samples.sample_id,
        run_samples.input_hash,
        run_samples.ordinal,
        run_samples.metadata
    from run_samples
    where run_samples.run_id = $run_id
),

texts as (
    select
        here.sample_id,
        coalesce(here.metadata, samples.metadata) as metadata,
        -- Of the question; prompts in one language may ask about texts in another.
        if(
            regexp_matches(samples.question, '\p{Han}')
            and not regexp_matches(samples.question, '[\p{Hiragana}\p{Katakana}]'),  -- Japanese
            'zh',
            if($run_language = 'zh', 'en', $run_language)
        ) as language,
        lower(concat_ws(chr(10), here.sample_id, samples.question, samples.answer, samples.ground_truth)) as words
    from here
    inner join samples
        on samples.sample_id = here.sample_id
        and samples.input_hash = here.input_hash
    where $reads_texts
),

fitting_texts as (
    select sample_id
    from texts
    where coalesce(list_bool_and(list_transform($words::varchar[], lambda word: contains(words, word))), true)
        and ($language is null or language = $language)
        and not exists (
            from tags
            where coalesce(
                json_extract_string(texts.metadata, '/' || replace(replace(tags.key, '~', '~0'), '/', '~1')), ''
            ) <> tags.value
        )
),

held as (
    select ours.sample_id, ours.metric, ours.value, ours.value - theirs.value as change
    from scores as ours
    left join scores as theirs
        on theirs.run_id = $base
        and theirs.sample_id = ours.sample_id
        and theirs.metric = ours.metric
    where ours.run_id = $run_id and ours.metric in (select metric from conditions union all select $metric)
),

measured as (
    select
        held.sample_id,
        held.value,
        if(conditions.is_change, held.change, held.value) as measured,
        conditions.test,
        conditions.number
    from held
    inner join conditions on conditions.metric = held.metric
),

fitting_scores as (
    select sample_id
    from measured
    where case test
        when '<' then measured < number
        when '<=' then measured <= number
        when '>' then measured > number
        when '>=' then measured >= number
        when '=' then measured = number
        when 'unscored' then value is null
    end
    group by sample_id
    having count(*) = (select count(*) from conditions)
),

wrong as (
    select sample_id, 'fp' as verdict
    from classifications
    where run_id = $run_id and label = 'FP' and list_contains($verdicts::varchar[], 'fp')
    union
    select sample_id, 'fn' as verdict
    from classifications
    where run_id = $run_id and label = 'FN' and list_contains($verdicts::varchar[], 'fn')
    union
    select attributions.sample_id, 'unsupported' as verdict
    from attributions
    inner join statements
        on statements.run_id = attributions.run_id
        and statements.sample_id = attributions.sample_id
        and statements.statement_id = attributions.statement_id
    where attributions.run_id = $run_id
        and not attributions.supported
        and statements.source = 'answer'
        and list_contains($verdicts::varchar[], 'unsupported')
),

fitting_verdicts as (
    select sample_id
    from wrong
    group by sample_id
    having count(*) = len($verdicts::varchar[])
),

caused as (
    select sample_id
    from sample_causes
    where run_id = $run_id and cause = $cause
),

labelled as (
    select
        sample_id,
        bool_or(label = judge_label) as agrees,
        bool_or(label <> judge_label) as differs
    from reviewed_verdicts
    where run_id = $run_id and $label is not null
    group by sample_id
),

placed as (
    select here.sample_id, here.ordinal, if($sort = 'change', held.change, held.value) as measured
    from here
    left join held
        on held.sample_id = here.sample_id
        and held.metric = $metric
    where (not $reads_texts or here.sample_id in (select sample_id from fitting_texts))
        and (not exists (from conditions) or here.sample_id in (select sample_id from fitting_scores))
        and (len($verdicts::varchar[]) = 0 or here.sample_id in (select sample_id from fitting_verdicts))
        and ($cause is null or here.sample_id in (select sample_id from caused))
        and case $label
            when 'labelled' then here.sample_id in (select sample_id from labelled)
            when 'unlabelled' then here.sample_id not in (select sample_id from labelled)
            when 'agrees' then here.sample_id in (select sample_id from labelled where agrees)
            when 'differs' then here.sample_id in (select sample_id from labelled where differs)
            else true
        end
)

select sample_id
from placed
order by
    case when $sort in ('score', 'change') then if($descending, -measured, measured) end nulls last,
    case when $sort = 'id' and not $descending then sample_id end,
    case when $sort = 'id' and $descending then sample_id end desc,
    if($sort = 'order' and $descending, -ordinal, ordinal),
    sample_id
