-- One row per metric and reviewed verdict of a run that the metric is a mean over: the judge's verdict, people's, and
-- how many verdicts of the run it represents. Verdicts that were never picked at random represent none, and are left out.
create or replace view corrected_verdicts as
with reviewed as (
    select
        run_id,
        sample_id,
        step,
        source,
        statement_id,
        context_rank,
        (any_value(judge_label) in ('TP', 'supported', 'useful'))::double as judged,
        -- Reviewers who differ share the verdict.
        avg((label in ('TP', 'supported', 'useful'))::integer) as labelled,
        count(*) as n_reviewers,
        any_value(stratum) as stratum,
        any_value(probability) as probability,
        bool_and(review_run_id <> run_id) as is_carried
    from reviewed_verdicts
    where probability > 0
    group by run_id, sample_id, step, source, statement_id, context_rank
),

lengths as (
    select run_id, sample_id, source, count(*) as n_statements
    from statements
    group by run_id, sample_id, source
),

rankings as (
    select run_id, sample_id, count(*) as n_contexts
    from context_verdicts
    group by run_id, sample_id
),

placed as (
    select
        reviewed.*,
        case
            when reviewed.step = 'attribute' and reviewed.source = 'answer' then 'faithfulness'
            when reviewed.step = 'attribute' and reviewed.source = 'ground_truth' then 'context_recall'
            when reviewed.step = 'classify' and reviewed.source = 'answer' then 'factual_precision'
            when reviewed.step = 'classify' and reviewed.source = 'ground_truth' then 'statement_recall'
            when reviewed.step = 'rank' then 'precision_retrieved'
        end as metric,
        lengths.n_statements,
        rankings.n_contexts,
        -- As in sample_rankings: a repeat of a text gains nothing.
        list_position(samples.contexts, samples.contexts[reviewed.context_rank]) < reviewed.context_rank as is_repeat
    from reviewed
    left join lengths
        on lengths.run_id = reviewed.run_id
        and lengths.sample_id = reviewed.sample_id
        and lengths.source = reviewed.source
    left join rankings
        on rankings.run_id = reviewed.run_id
        and rankings.sample_id = reviewed.sample_id
    inner join run_samples
        on run_samples.run_id = reviewed.run_id
        and run_samples.sample_id = reviewed.sample_id
    inner join samples
        on samples.sample_id = run_samples.sample_id
        and samples.input_hash = run_samples.input_hash
),

scored as (
    select
        placed.*,
        -- As the header of precision_retrieved has it, unless the run set another k.
        least(
            coalesce(try_cast(regexp_extract(scores.metric_version, ';k=(\d+)', 1) as bigint), 5), placed.n_contexts
        ) as n_ranks,
        1 / case when placed.step = 'rank' then n_ranks else placed.n_statements end as share
    from placed
    inner join scores
        on scores.run_id = placed.run_id
        and scores.sample_id = placed.sample_id
        and scores.metric = placed.metric
    where scores.value is not null
)

select
    scored.run_id,
    scored.metric,
    scored.sample_id,
    scored.step,
    scored.statement_id,
    scored.context_rank,
    case when scored.is_repeat then 0 else scored.judged end as judged,
    case when scored.is_repeat then 0 else scored.labelled end as said,
    scored.share,
    scored.n_reviewers,
    coalesce(corrected_strata.n_picked / corrected_strata.n_labelled, 1) / scored.probability as weight,
    scored.is_carried
from scored
left join corrected_strata
    on corrected_strata.run_id = scored.run_id
    and corrected_strata.stratum = scored.stratum
    and corrected_strata.probability = scored.probability
where scored.step <> 'rank' or scored.context_rank <= scored.n_ranks;

comment on view corrected_verdicts is 'One row per metric and reviewed verdict of a run that the metric is a mean over. Name a run, as for reviewed_verdicts.';
comment on column corrected_verdicts.run_id is 'Run.';
comment on column corrected_verdicts.metric is 'Metric: faithfulness, context_recall, factual_precision, statement_recall or precision_retrieved.';
comment on column corrected_verdicts.sample_id is 'Sample.';
comment on column corrected_verdicts.step is 'Step that gave the verdict: classify, attribute or rank.';
comment on column corrected_verdicts.statement_id is 'Statement the verdict is about; NULL in step rank.';
comment on column corrected_verdicts.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column corrected_verdicts.judged is 'The judge''s verdict: 1 for TP, supported or useful, else 0; 0 for a context whose id has an earlier rank.';
comment on column corrected_verdicts.said is 'People''s verdict, 0 to 1: the share of reviewers with 1.';
comment on column corrected_verdicts.share is 'Its share of its sample''s score: 1 / statements of the text, or 1 / the ranks that precision_retrieved counts.';
comment on column corrected_verdicts.n_reviewers is 'People who labelled it.';
comment on column corrected_verdicts.weight is 'Verdicts of the run that it represents: 1 / probability of being picked, times picked / labelled in its group.';
comment on column corrected_verdicts.is_carried is 'True when people labelled the same content in other runs alone.';
