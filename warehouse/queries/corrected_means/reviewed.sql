-- A reply from the record has the prompt it was asked with, as one from the endpoint has.
with made as (
    select run_id, sample_id, 'classify' as step, statement_id, null::integer as context_rank, call_id
    from classifications
    where run_id = $run_id
    union all
    select run_id, sample_id, 'attribute', statement_id, null, call_id from attributions where run_id = $run_id
    union all
    select run_id, sample_id, 'rank', null, context_rank, call_id from context_verdicts where run_id = $run_id
),

asked as (
    select
        llm_calls.call_id,
        llm_calls.prompt,
        llm_calls.judge,
        llm_calls.prompt_hash,
        coalesce(prompts.version || ' ', '') || left(llm_calls.prompt_hash, 8) as prompt_version
    from llm_calls
    left join prompts on prompts.prompt_hash = llm_calls.prompt_hash
    where llm_calls.run_id = $run_id
)

select
    reviewed.run_id,
    reviewed.sample_id,
    reviewed.step,
    reviewed.statement_id,
    reviewed.context_rank,
    reviewed.item_hash,
    reviewed.judge_label,
    reviewed.label,
    reviewed.first_label,
    reviewed.reviewer,
    reviewed.stratum,
    reviewed.probability,
    coalesce(corrected_strata.n_picked / corrected_strata.n_labelled, 1) / nullif(reviewed.probability, 0) as weight,
    coalesce(asked.judge, runs.judge) as judge,
    -- Of the question; prompts in one language may ask about texts in another.
    if(
        regexp_matches(samples.question, '\p{Han}')
        and not regexp_matches(samples.question, '[\p{Hiragana}\p{Katakana}]'),  -- Japanese
        'zh',
        if(runs.language = 'zh', 'en', runs.language)
    ) as language,
    asked.prompt_hash,
    asked.prompt_version
from reviewed_verdicts as reviewed
inner join runs on runs.run_id = reviewed.run_id
left join made
    on made.sample_id = reviewed.sample_id
    and made.step = reviewed.step
    and coalesce(made.statement_id, '') = coalesce(reviewed.statement_id, '')
    and coalesce(made.context_rank, 0) = coalesce(reviewed.context_rank, 0)
-- A verdict by rule has the call of the split it rests on.
left join asked
    on asked.call_id = made.call_id
    and asked.prompt = made.step
inner join run_samples
    on run_samples.run_id = reviewed.run_id
    and run_samples.sample_id = reviewed.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
left join corrected_strata
    on corrected_strata.run_id = reviewed.run_id
    and corrected_strata.stratum = reviewed.stratum
    and corrected_strata.probability = reviewed.probability
where reviewed.run_id = $run_id
order by reviewed.sample_id, reviewed.step, reviewed.statement_id, reviewed.context_rank, reviewed.reviewer
