-- One row per run of repeated_runs (a name for a table of run_ids) and metric: what the scores of its answers vary by.
--
-- A score is taken to be the sum of what its question adds, what the bot's answer adds within the question, and what the
-- judge adds within the answer (nested random effects; Searle, Casella and McCulloch 1992, Variance Components). With
--
--     S  the variance of the first answers' scores over the questions
--     W  the variance within questions: sum of w / sum of f, w being the squares about the mean of a question's a
--        answers and f = a - 1. Only a share of the questions is repeated, and some answers have no score: each
--        question counts by the answers it has
--     J  half the mean square of the differences between two judgements of one answer, by noise runs
--     s  the share, in W, of pairs of answers that were not judged by the very same replies: an answer that is what
--        it was takes its replies from the record, and then the judge cannot set the two apart
--
-- the estimates by the method of moments are
--
--     judge = J,   bot = W - s J,   question = S - W - (1 - s) J
--
-- which add up to S, so that they are parts of the variance behind the interval of the run's mean. An estimate below 0 is
-- shown as 0.
--
-- Intervals (95 %). S, W and J are means of squares, and n T / chi2 bounds each as if it had n degrees of freedom. Scores
-- are not normal, so n is found by their spread: n = 2 T^2 / var(T) (Satterthwaite 1946, Biometrics Bulletin 2(6)), where
-- var(T) is that of a mean, or a ratio of sums, of independent questions. As that is itself an estimate, W and J have at
-- most as many as normal values would, and m / (m + 5) of that for m questions or pairs; S has one less. Where few of m
-- differ at all the interval is as wide as that of the share that differ (Wilson with Yates' correction; Newcombe 1998,
-- Statistics in Medicine 17) times what those add. No variance of values on a scale is above a quarter of its square
-- (Popoviciu). Differences of them are bounded by the squares of the distances (Zou and Donner 2008, Statistics in
-- Medicine 27; for independent mean squares close to the modified large-sample intervals of Burdick and Graybill 1992),
-- with the correlation of S and W, which rest on some of the same questions. The quantile of chi2 is that of Wilson and
-- Hilferty (1931). How often the intervals hold is measured in `tests/formulas/test_noise_components.py`.
with rounds as (
    select run_id, run_id as round_id
    from repeated_runs
    union all
    select parent_run_id as run_id, run_id as round_id
    from runs
    where kind = 'repeats'
        and status in ('completed', 'incomplete')
        and parent_run_id in (select run_id from repeated_runs)
),

versions as (
    select run_id, metric, any_value(metric_version) as metric_version
    from scores
    where run_id in (select run_id from repeated_runs)
    group by run_id, metric
),

-- Scores by another version of a metric differ by more than the bot.
answers as (
    select rounds.run_id, rounds.round_id, scores.metric, scores.sample_id, scores.value
    from (from scores where value is not null and run_id in (select round_id from rounds)) as scores
    inner join rounds on rounds.round_id = scores.run_id
    inner join versions
        on versions.run_id = rounds.run_id
        and versions.metric = scores.metric
        and versions.metric_version is not distinct from scores.metric_version
),

-- The very replies that an answer was judged by. One from the record is the reply that was paid for.
replies as (
    select distinct run_id as round_id, sample_id, step, coalesce(reused_call_id, call_id) as reply
    from llm_calls
    where status in ('ok', 'cached') and sample_id is not null and run_id in (select round_id from rounds)
),

steps as (
    select metric, step
    from metric_steps
    where metric in (select metric from versions)
    union
    select metric, 'fused' as step
    from metric_steps
    where step in ('classify', 'attribute_answer', 'attribute_ground_truth', 'rank')
        and metric in (select metric from versions)
),

-- Of a metric whose steps are not known every step counts.
judged_by as (
    select replies.round_id, replies.sample_id, steps.metric, bit_xor(hash(replies.step, replies.reply)) as reply_hash
    from replies
    inner join steps using (step)
    group by replies.round_id, replies.sample_id, steps.metric
    union all
    select replies.round_id, replies.sample_id, others.metric, bit_xor(hash(replies.step, replies.reply)) as reply_hash
    from replies
    cross join (select distinct metric from versions anti join steps using (metric)) as others
    group by replies.round_id, replies.sample_id, others.metric
),

alike as (
    select run_id, metric, sample_id, sum(n * (n - 1) / 2) as n_pairs
    from (
        select answers.run_id, answers.metric, answers.sample_id, judged_by.reply_hash, count(*) as n
        from answers
        left join judged_by using (round_id, sample_id, metric)
        group by answers.run_id, answers.metric, answers.sample_id, judged_by.reply_hash
    )
    group by run_id, metric, sample_id
),

questions as (
    select
        run_id,
        metric,
        sample_id,
        max(value) filter (where round_id = run_id) as first,
        count(*) as n,
        case when count(*) > 1 then count(*) - 1 end as freedom,
        -- What is equal on paper may differ in the last digit.
        case
            when count(*) > 1 and max(value) - min(value) < 1e-12 then 0.0
            when count(*) > 1 then var_pop(value) * count(*)
        end as squares,
        min(value) as lowest,
        max(value) as highest
    from answers
    group by run_id, metric, sample_id
),

centred as (
    select
        questions.*,
        questions.freedom - 2 * alike.n_pairs / questions.n as freedom_apart,
        pow(questions.first - avg(questions.first) over of_metric, 2) as square,
        var_pop(questions.first) over of_metric as spread,
        var_samp(questions.first) over of_metric as variance,
        sum(questions.squares) over of_metric / sum(questions.freedom) over of_metric as within_questions
    from questions
    inner join alike using (run_id, metric, sample_id)
    window of_metric as (partition by questions.run_id, questions.metric)
),

sums as (
    select
        run_id,
        metric,
        count(first) as n_questions,
        count(squares) as n_repeated,
        coalesce(sum(n) filter (where squares is not null), 0)::bigint as n_answers,
        count(*) filter (where squares > 0) as n_otherwise,
        any_value(variance) as variance,
        sum(pow(square - spread, 2)) / count(first) / nullif(count(first) - 1, 0) as variance_error,
        any_value(within_questions) as within_questions,
        sum(pow(squares - within_questions * freedom, 2)) / pow(sum(freedom), 2)
        * count(squares) / nullif(count(squares) - 1, 0) as within_error,
        sum(freedom) as freedom,
        sum(freedom_apart) filter (where squares is not null) / sum(freedom) as judged_apart,
        sum((square - variance) * (squares - within_questions * freedom))
        / nullif(
            sqrt(sum(pow(square - variance, 2)) * sum(pow(squares - within_questions * freedom, 2))), 0
        ) as correlation,
        case
            when min(lowest) >= 0 and max(highest) <= 1 then 1.0
            else max(highest) - min(lowest)
        end as scale
    from centred
    group by run_id, metric
),

-- How the judge of an evaluation was asked, and in which series: one key, so that a join need not begin with what is the
-- same everywhere.
manners as (
    select
        run_series.run_id,
        run_series.started_at,
        hash(
            run_series.series, run_series.judge, run_series.embeddings, run_series.language, run_series.plan,
            runs.config ->> '$.votes', runs.config ->> '$.temperature'
        ) as manner
    from run_series
    inner join runs on runs.run_id = run_series.run_id
),

-- The newest ten noise runs of the series up to the run whose judge was asked in the same way.
judged_twice as (
    select this.run_id, pairs.run_id as first_run_id, pairs.noise_run_id
    from (from manners where run_id in (select run_id from repeated_runs)) as this
    inner join (
        select manners.*, measured.noise_run_id
        from manners
        inner join (select distinct run_id, noise_run_id from noise where noise_run_id <> run_id and n_samples > 0)
            as measured using (run_id)
    ) as pairs on pairs.manner = this.manner and pairs.started_at <= this.started_at
    qualify row_number() over (
        partition by this.run_id order by pairs.started_at desc, pairs.run_id desc, pairs.noise_run_id desc
    ) <= 10
),

differences as (
    select
        scored.run_id,
        scores.metric,
        case
            when max(scores.value) - min(scores.value) < 1e-12 then 0.0
            else pow(max(scores.value) - min(scores.value), 2) / 2
        end as square
    from (from scores where value is not null) as scores
    inner join (
        select run_id, noise_run_id, noise_run_id as scored_run_id from judged_twice
        union all
        select run_id, noise_run_id, first_run_id as scored_run_id from judged_twice
    ) as scored on scored.scored_run_id = scores.run_id
    inner join versions
        on versions.run_id = scored.run_id
        and versions.metric = scores.metric
        and versions.metric_version is not distinct from scores.metric_version
    group by scored.run_id, scored.noise_run_id, scores.metric, scores.sample_id
    having count(*) = 2
),

judged as (
    select
        run_id,
        metric,
        count(*) as n,
        count(*) filter (where square > 0) as n_otherwise,
        avg(square) as between_judgements,
        var_samp(square) / count(*) as between_error
    from differences
    group by run_id, metric
),

-- Both variances that are known from repetition, a row each: of `n` questions or pairs `n_otherwise` differ at all.
repeated as (
    select
        run_id, metric, 'within' as part, within_questions as value, within_error as error, n_repeated as n, n_otherwise,
        freedom, freedom / n_repeated as mean_freedom, scale
    from sums
    where n_repeated > 0
    union all by name
    select
        judged.run_id, judged.metric, 'judge' as part, judged.between_judgements as value,
        judged.between_error as error, judged.n, judged.n_otherwise, judged.n as freedom, 1 as mean_freedom, sums.scale
    from judged
    inner join sums using (run_id, metric)
),

counted as (
    select
        *,
        greatest(least(coalesce(2 * pow(value, 2) / nullif(error, 0), freedom), freedom) * n / (n + 5), 1) as degrees,
        1.959964 as z,
        n_otherwise / n as share,
        case when n_otherwise = 0 then pow(scale, 2) / 2 else value * n / n_otherwise end as step
    from repeated
),

bounded as (
    select
        run_id,
        metric,
        part,
        value,
        least(
            value / pow(1 - 2 / (9 * degrees) + z * sqrt(2 / (9 * degrees)), 3),
            case
                when n_otherwise = 0 then 0
                else step * (
                    2 * n_otherwise + z * z - 1
                    - z * sqrt(greatest(z * z - 2 - 1 / n + 4 * share * (n * (1 - share) + 1), 0))
                ) / (2 * (n + z * z))
            end
        ) as low,
        least(
            greatest(
                value / pow(greatest(1 - 2 / (9 * degrees) - z * sqrt(2 / (9 * degrees)), 1e-3), 3),
                case
                    when n_otherwise = n then step
                    else step * (
                        2 * n_otherwise + z * z + 1
                        + z * sqrt(greatest(z * z + 2 - 1 / n + 4 * share * (n * (1 - share) - 1), 0))
                    ) / (2 * (n + z * z))
                end
            ),
            greatest(pow(scale, 2) / 4, value)
        ) as high
    from counted
),

totals as (
    select
        *,
        -- Of zeros and ones in equal parts the variance is known at once.
        greatest(coalesce(2 * pow(variance, 2) / nullif(variance_error, 0), 1e6) - 1, 1) as degrees,
        1.959964 as z
    from sums
),

joined as (
    select
        totals.run_id,
        totals.metric,
        totals.n_questions,
        totals.n_repeated,
        totals.n_answers,
        totals.n_otherwise,
        coalesce(judged.n, 0) as n_judged_twice,
        coalesce(judged.n_otherwise, 0) as n_judged_otherwise,
        totals.judged_apart as apart,
        coalesce(totals.correlation, 0) as correlation,
        totals.scale,
        totals.variance,
        totals.variance
        / pow(1 - 2 / (9 * totals.degrees) + z * sqrt(2 / (9 * totals.degrees)), 3) as variance_low,
        case
            -- At most a share 1 - 0.025 ^ (1 / n) of further questions differs, as n questions without one show.
            when totals.variance < 1e-20
                then pow(totals.scale, 2) * (pow(0.025, 1 / n_questions) - pow(0.025, 2 / n_questions))
            else least(
                totals.variance
                / pow(greatest(1 - 2 / (9 * totals.degrees) - z * sqrt(2 / (9 * totals.degrees)), 1e-3), 3),
                greatest(pow(totals.scale, 2) / 4, totals.variance)
            )
        end as variance_high,
        within.value as within_questions,
        within.low as within_low,
        within.high as within_high,
        -- The lexical judge is deterministic.
        case when is_fixed then 0 else judge.value end as judge_value,
        case when is_fixed then 0 else judge.low end as judge_low,
        case when is_fixed then 0 else judge.high end as judge_high
    from totals
    inner join (
        select run_id, judge = 'lexical' and coalesce(embeddings, 'hashing') = 'hashing' as is_fixed from runs
    ) as runs on runs.run_id = totals.run_id
    left join judged on judged.run_id = totals.run_id and judged.metric = totals.metric
    left join bounded as within
        on within.run_id = totals.run_id and within.metric = totals.metric and within.part = 'within'
    left join bounded as judge
        on judge.run_id = totals.run_id and judge.metric = totals.metric and judge.part = 'judge'
),

-- Distances of the bounds, for what differences of them leave open.
parts as (
    select
        *,
        within_questions - apart * judge_value as bot,
        sqrt(pow(within_questions - within_low, 2) + pow(apart * (judge_high - judge_value), 2)) as bot_below,
        sqrt(pow(within_high - within_questions, 2) + pow(apart * (judge_value - judge_low), 2)) as bot_above,
        variance - within_questions - (1 - apart) * coalesce(judge_value, 0) as question,
        sqrt(
            pow(variance - variance_low, 2) + pow(within_high - within_questions, 2)
            - 2 * correlation * (variance - variance_low) * (within_high - within_questions)
            + pow((1 - apart) * coalesce(judge_high - judge_value, 0), 2)
        ) as question_below,
        sqrt(
            pow(variance_high - variance, 2) + pow(within_questions - within_low, 2)
            - 2 * correlation * (variance_high - variance) * (within_questions - within_low)
            + pow((1 - apart) * coalesce(judge_value - judge_low, 0), 2)
        ) as question_above
    from joined
)

select
    run_id,
    metric,
    n_questions,
    n_repeated,
    n_answers,
    n_otherwise,
    n_judged_twice,
    n_judged_otherwise,
    apart as judged_apart,
    scale,
    variance,
    variance_low,
    variance_high,
    -- greatest leaves NULL out.
    case when question is not null then greatest(question, 0) end as question_variance,
    case when question is not null then greatest(question - question_below, 0) end as question_low,
    case when question is not null then greatest(question + question_above, 0) end as question_high,
    within_questions as answer_variance,
    within_low as answer_low,
    within_high as answer_high,
    case when bot is not null then greatest(bot, 0) end as bot_variance,
    case when bot is not null then greatest(bot - bot_below, 0) end as bot_low,
    case when bot is not null then greatest(bot + bot_above, 0) end as bot_high,
    judge_value as judge_variance,
    judge_low,
    judge_high
from parts
where n_repeated > 0
