-- One row per run and metric that is a mean over single verdicts and has reviewed ones: the mean as the judge has it, and
-- corrected by people's labels of the reviewed few.
--
-- The estimate is that of prediction-powered inference with a tuned weight of the judge (PPI++, Angelopoulos, Duchi and
-- Zrnic 2023, arXiv:2311.01453), for verdicts that were picked with known probabilities and that come in samples:
--   people's mean of the reviewed + judge_weight * (judge's mean of all - judge's mean of the reviewed),
-- where a reviewed verdict counts for its share of its sample's score times the verdicts it represents. The variance is that
-- of each sample's influence on the estimate, so that verdicts of one sample need not be independent and what differs
-- between samples is part of it, as in run_scores; a reviewed sample's influence is what leaving it out would do (delete-one
-- jackknife). Influences of samples that share a cluster are added up before they are squared. judge_weight is the value in 0 to 1 that makes this variance smallest.
--
-- Four pseudo-observations, two at 0 and two at 1 (Agresti and Coull 1998), are taken into people's part in proportion to what
-- it counts, 1 - judge_weight; and one further disagreement into the judge's part, since few verdicts without an
-- error prove little. The interval is Student's, with the effective number of reviewed samples less two as degrees of
-- freedom, by the expansion of Fisher and Cornish (1960), off by less than 0.1 % from 8 on.
create or replace view corrected_scores as
with summed as (
    select
        run_id,
        metric,
        sample_id,
        count(*) as n_reviewed,
        count(*) filter (where is_carried) as n_carried,
        sum(weight) as represented,
        sum(weight * share) as size,
        sum(pow(weight * share, 2)) as size_squared,
        sum(weight * share * said) as labelled,
        sum(weight * share * judged) as judged
    from corrected_verdicts
    group by run_id, metric, sample_id
),

-- Of a sample's score, the part that rests on verdicts: all of it, but nothing where a retrieval found nothing, whose
-- ranking is 0 by rule.
scored as (
    select
        scores.run_id,
        scores.metric,
        scores.sample_id,
        scores.value,
        case when scores.metric = 'precision_retrieved' and len(sample_rankings.useful_gains) = 0 then 0 else 1 end as extent
    from scores
    left join sample_rankings
        on sample_rankings.run_id = scores.run_id
        and sample_rankings.sample_id = scores.sample_id
    where scores.metric in (
        'faithfulness', 'context_recall', 'factual_precision', 'statement_recall', 'precision_retrieved'
    )
        and scores.value is not null
),

joined as (
    select
        scored.run_id,
        scored.metric,
        coalesce(run_samples.cluster, 'sample ' || scored.sample_id) as cluster,
        scored.value,
        scored.extent,
        case when scored.extent > 0 then scored.value else 0 end as judged_value,
        coalesce(summed.n_reviewed, 0) as n_reviewed,
        coalesce(summed.n_carried, 0) as n_carried,
        coalesce(summed.represented, 0) as represented,
        coalesce(summed.size, 0) as size,
        coalesce(summed.size_squared, 0) as size_squared,
        coalesce(summed.labelled, 0) as labelled,
        coalesce(summed.judged, 0) as judged
    from scored
    left join summed
        on summed.run_id = scored.run_id
        and summed.metric = scored.metric
        and summed.sample_id = scored.sample_id
    left join run_samples
        on run_samples.run_id = scored.run_id
        and run_samples.sample_id = scored.sample_id
),

totalled as (
    select
        *,
        count(*) over of_metric as n_samples,
        avg(value) over of_metric as mean,
        avg(judged_value) over of_metric as mean_judged,
        avg(extent) over of_metric as mean_extent,
        sum(size) over of_metric as total_size,
        sum(labelled) over of_metric / sum(size) over of_metric as mean_labelled,
        sum(judged) over of_metric / sum(size) over of_metric as mean_judged_reviewed
    from joined
    window of_metric as (partition by run_id, metric)
    qualify sum(size) over of_metric > 0
),

-- What each sample adds: `people` to people's part of the estimate, `judge` to the difference of the judge's two means.
influences as (
    select
        *,
        value - judged_value - (mean - mean_judged)
        + mean_labelled * (extent - mean_extent)
        + mean_extent * n_samples * (labelled - mean_labelled * size) / nullif(total_size - size, 0) as people,
        judged_value - mean_judged
        - mean_judged_reviewed * (extent - mean_extent)
        - mean_extent * n_samples * (judged - mean_judged_reviewed * size) / nullif(total_size - size, 0) as judge
    from totalled
),

grouped as (
    select
        run_id,
        metric,
        cluster,
        any_value(mean) as mean,
        any_value(n_samples) as n_samples,
        any_value(mean_judged) as mean_judged,
        any_value(mean_extent) as mean_extent,
        any_value(mean_labelled) as mean_labelled,
        any_value(mean_judged_reviewed) as mean_judged_reviewed,
        any_value(total_size) as total_size,
        sum(n_reviewed) as n_reviewed,
        sum(n_carried) as n_carried,
        count(*) filter (where n_reviewed > 0) as n_samples_reviewed,
        sum(represented) as represented,
        sum(size) as size,
        sum(size_squared) as size_squared,
        sum(pow(size, 2)) as sample_size_squared,
        sum(people) as people,
        sum(judge) as judge
    from influences
    group by run_id, metric, cluster
),

collected as (
    select
        run_id,
        metric,
        any_value(mean) as mean,
        any_value(n_samples) as n_scored,
        any_value(mean - mean_judged + mean_extent * mean_labelled) as mean_of_people,
        any_value(mean_judged - mean_extent * mean_judged_reviewed) as judge_difference,
        any_value(mean_extent * (mean_judged_reviewed - mean_labelled)) as judge_bias,
        any_value(mean_extent) as mean_extent,
        least(any_value(total_size / (n_samples * mean_extent)), 1) as coverage,
        sum(n_reviewed)::bigint as n_reviewed,
        sum(n_carried)::bigint as n_carried,
        sum(n_samples_reviewed)::bigint as n_samples_reviewed,
        count(*) filter (where n_reviewed > 0) as n_groups_reviewed,
        sum(represented) as represented,
        pow(sum(size), 2) / sum(size_squared) as n_effective,
        pow(sum(size), 2) / sum(sample_size_squared) as n_samples_effective,
        pow(sum(size), 2) / sum(pow(size, 2)) as n_groups_effective,
        sum(people * people) as people_squared,
        sum(people * judge) as people_judge,
        sum(judge * judge) as judge_squared
    from grouped
    group by run_id, metric
),

tuned as (
    select
        *,
        case
            when judge_squared > 0 then greatest(least(-people_judge / judge_squared, 1), 0)
            else 1
        end as judge_weight,
        -- Labels from another run are of the verdicts that have not changed since: no draw from all.
        -- Nor are the samples that a budget picked, which are more often the doubtful ones.
        n_effective >= 20 and n_groups_effective >= 10 and coverage >= case when n_carried > 0 then 0.8 else 0.5 end
        and run_id not in (select run_id from sample_picks where not picked) as is_enough,
        nullif(greatest(n_groups_effective - 2, 0), 0) as df
    from collected
),

estimated as (
    select
        *,
        mean_of_people + judge_weight * judge_difference as estimate,
        greatest(people_squared + 2 * judge_weight * people_judge + pow(judge_weight, 2) * judge_squared, 0)
        / pow(n_scored, 2) * n_groups_reviewed / nullif(n_groups_reviewed - 2, 0) as variance,
        pow(judge_weight * mean_extent / (n_effective + 4), 2) * greatest(1 - n_reviewed / represented, 0)
            as variance_unseen,
        1.959964 + 2.372271 / df + 2.822502 / pow(df, 2) + 2.555850 / pow(df, 3) as quantile
    from tuned
),

padded as (
    select
        *,
        estimate + (1 - judge_weight) * (0.5 - estimate) * 4 / (n_groups_effective + 4) as centre,
        variance * pow((n_groups_effective + 4 * judge_weight) / (n_groups_effective + 4), 2)
        + pow((1 - judge_weight) / (n_groups_effective + 4), 2)
        * (1 + 4 * n_groups_effective * pow(estimate - 0.5, 2) / (n_groups_effective + 4))
        + variance_unseen as variance_padded
    from estimated
),

bounded as (
    select
        *,
        -- greatest and least leave NULL out.
        case when is_enough then greatest(least(estimate, 1), 0) end as corrected_mean,
        case when is_enough then greatest(least(centre - quantile * sqrt(variance_padded), 1), 0) end as ci_low,
        case when is_enough then greatest(least(centre + quantile * sqrt(variance_padded), 1), 0) end as ci_high
    from padded
)

select
    run_id,
    metric,
    mean,
    corrected_mean,
    ci_low,
    ci_high,
    judge_bias,
    judge_weight,
    n_reviewed,
    n_carried,
    n_samples_reviewed,
    n_effective,
    n_samples_effective,
    coverage,
    n_scored
from bounded;

comment on view corrected_scores is 'One row per run and metric that is a mean over single verdicts and has reviewed ones: the mean, corrected by people''s labels of the reviewed few. Name a run, as for reviewed_verdicts.';
comment on column corrected_scores.run_id is 'Run.';
comment on column corrected_scores.metric is 'Metric: faithfulness, context_recall, factual_precision, statement_recall or precision_retrieved.';
comment on column corrected_scores.mean is 'Mean over the scored samples as the judge has it, as in run_scores.';
comment on column corrected_scores.corrected_mean is 'What the mean would be by people''s labels of all verdicts, estimated from all of the judge''s and the reviewed few; statements that the judge missed or made up when it split a text are not corrected; NULL with fewer than 20 reviewed verdicts or 10 samples (or groups of samples) of theirs, both effective, a coverage under 0.5 (0.8 with labels of other runs), or where a budget of samples left some out.';
comment on column corrected_scores.ci_low is 'Lower end of the 95 % interval of corrected_mean, at least 0; NULL as corrected_mean.';
comment on column corrected_scores.ci_high is 'Upper end of the 95 % interval of corrected_mean, at most 1; NULL as corrected_mean.';
comment on column corrected_scores.judge_bias is 'By how much the judge rates the reviewed verdicts higher than people do; below 0 when it is stricter.';
comment on column corrected_scores.judge_weight is 'How much the judge''s verdicts count: 1 all, 0 people''s labels alone.';
comment on column corrected_scores.n_reviewed is 'Reviewed verdicts of the metric.';
comment on column corrected_scores.n_carried is 'Reviewed verdicts of these that were reviewed in other runs alone, where their content was the same.';
comment on column corrected_scores.n_samples_reviewed is 'Samples with a reviewed verdict.';
comment on column corrected_scores.n_effective is 'Reviewed verdicts with equal weights that would be as informative, (sum of weights)^2 / sum of their squares (Kish 1965, Survey Sampling).';
comment on column corrected_scores.n_samples_effective is 'The same over the samples that they come from.';
comment on column corrected_scores.coverage is 'Share of the run''s verdicts that the reviewed represent, at most 1: less where labels come from other runs.';
comment on column corrected_scores.n_scored is 'Samples with a value.';
