-- The score by night
-- gives started_at, run_id, label, judge, mean, ci_low, ci_high, n_scored, n_unscored, change, same_yardstick
select started_at, run_id, label, judge, mean, ci_low, ci_high, n_scored, n_unscored, change, same_yardstick
from score_history
where metric = 'faithfulness'
order by series, started_at;

-- Which samples got worse between the two last runs
-- gives sample_id, metric, before, after, worse_by, input_changed, same_yardstick, answer
with yardsticks as (
    select count(distinct {j: judge, e: embeddings, l: language, p: plan}) = 1 as same_tools
    from run_series
    where run_id in (getvariable('latest'), getvariable('previous'))
)
select sample_id, metric, before.value as before, after.value as after,
       if(after.better = 'low', after.value - before.value,
          before.value - after.value) as worse_by,
       here.input_hash <> there.input_hash as input_changed,
       same_tools and after.metric_version = before.metric_version as same_yardstick, samples.answer
from scores as after
cross join yardsticks
inner join scores as before using (sample_id, metric)
inner join run_samples as here using (sample_id)
inner join run_samples as there using (sample_id)
inner join samples on samples.sample_id = here.sample_id and samples.input_hash = here.input_hash
where after.run_id = getvariable('latest') and before.run_id = getvariable('previous')
    and here.run_id = getvariable('latest') and there.run_id = getvariable('previous') and after.better <> 'neutral' and worse_by > 0
order by worse_by desc, sample_id, metric
limit 20;

-- The history of one sample
-- gives metric, started_at, run_id, judge, value, change, input_changed, same_yardstick, unscored_reason
select metric, started_at, run_id, judge, value, change, input_changed, same_yardstick, unscored_reason
from sample_history
where sample_id = 'tide-1'
order by metric, started_at;

-- The flakiest samples of the last 30 runs, whose score moves though all that is judged and the judge are the same
-- gives sample_id, metric, judge, n_runs, lowest, highest
with lately as (
    select run_id, series, judge, embeddings, language, plan from run_series order by started_at desc limit 30
)
select sample_id, metric, judge, count(value) as n_runs, min(value) as lowest, max(value) as highest
from scores
inner join lately using (run_id)
inner join run_samples using (run_id, sample_id)
group by series, sample_id, metric, metric_version, input_hash, judge, embeddings, language, plan
having highest - lowest > 1e-9
order by highest - lowest desc, sample_id, metric
limit 20;

-- The trend: the last five runs against the five before, by the same judge
-- gives series, metric, judge, language, lately, earlier, difference
with numbered as (
    select series, metric, judge, language, embeddings, metric_version, mean,
           row_number() over (
               partition by series, metric, judge, language, embeddings, metric_version order by started_at desc
           ) as place
    from score_history
    where status <> 'running'
)
select series, metric, judge, language, avg(mean) filter (where place <= 5) as lately,
       avg(mean) filter (where place between 6 and 10) as earlier, lately - earlier as difference
from numbered
group by series, metric, judge, language, embeddings, metric_version
order by difference nulls last, series, metric;

-- What each metric costs; a step that serves several metrics is shared evenly, and NULL is a price not known
-- gives run_id, metric, cost_usd, steps
with latest as (
    select run_id, metrics from runs where run_id = getvariable('latest')
),
uses as (
    select run_id, metric, step
    from latest
    inner join metric_steps on list_contains(latest.metrics, metric_steps.metric)
    union    -- with the plan `fused` these ask in one request
    select run_id, metric, 'fused'
    from latest
    inner join metric_steps on list_contains(latest.metrics, metric_steps.metric)
    where step in ('classify', 'attribute_answer', 'attribute_ground_truth', 'rank')
),
shares as (
    select *, count(*) over (partition by run_id, step) as n_metrics from uses
)
select run_id, metric, sum(cost_usd / n_metrics) as cost_usd, list(step order by step) as steps
from shares
inner join run_costs using (run_id, step)
group by run_id, metric
order by cost_usd desc, metric;

-- What each step costs, run by run; n_unpriced calls have no known price and are not in it
-- gives started_at, run_id, step, n_requests, n_reused, prompt_tokens, completion_tokens, priced_usd, n_unpriced
select started_at, run_id, step, n_requests, n_reused, prompt_tokens, completion_tokens, priced_usd, n_unpriced
from run_costs
inner join runs using (run_id)
order by started_at desc, priced_usd desc, step;

-- Tokens by model and week; where the price of a call is not known, so is the cost
-- gives week, model, n_requests, prompt_tokens, cached_tokens, completion_tokens, n_unpriced, cost_usd
select date_trunc('week', started_at) as week, model, count(*) as n_requests, sum(prompt_tokens) as prompt_tokens,
       sum(cached_tokens) as cached_tokens, sum(completion_tokens) as completion_tokens,
       count(*) filter (where status = 'ok' and cost_usd is null) as n_unpriced,
       if(n_unpriced = 0, coalesce(sum(cost_usd), 0), null) as cost_usd
from llm_calls
where status <> 'cached'
group by all
order by week, model;

-- What the record and the provider's cache spared
-- gives started_at, run_id, n_calls, reused, cached
select started_at, run_id, sum(n_calls) as n_calls, round(sum(n_reused) / sum(n_calls), 3) as reused,
       round(sum(cached_tokens) / nullif(sum(prompt_tokens), 0), 3) as cached
from run_costs
inner join runs using (run_id)
group by all
order by started_at;

-- How long the application took to answer, run by run, and against the run before
-- gives series, started_at, run_id, n_answered, latency_p50_ms, latency_p95_ms, change_p95_ms
select series, started_at, run_id, n_answered, round(latency_p50_ms) as latency_p50_ms,
       round(latency_p95_ms) as latency_p95_ms,
       round(latency_p95_ms - lag(latency_p95_ms) over (partition by series order by started_at)) as change_p95_ms
from run_latencies
where n_answered > 0
order by series, started_at;

-- The slowest calls
-- gives latency_ms, run_id, sample_id, step, model, attempts, completion_tokens, call_id
select latency_ms, run_id, sample_id, step, model, attempts, completion_tokens, call_id
from llm_calls
where status <> 'cached'
order by latency_ms desc nulls last
limit 20;

-- What went wrong with calls
-- gives day, model, step, error, n_calls
select started_at::date as day, coalesce(model, judge) as model, step, error, count(*) as n_calls
from llm_calls
where status in ('error', 'refused')
group by all
order by day desc, n_calls desc, step, error;

-- What is not scored, and why
-- gives run_id, reason, meaning, n_scores, metrics, samples, detail
select run_id, reason, meaning, count(*) as n_scores, list(distinct metric order by metric) as metrics,
       list(distinct sample_id order by sample_id)[:5] as samples, any_value(detail) as detail
from unscored
left join unscored_reasons using (reason)
where run_id = getvariable('latest')
group by all
order by n_scores desc, reason;

-- Made-up statements, FP and supported by no context
-- gives sample_id, statement_id, text, label_reason, support_reason
select sample_id, statement_id, text, label_reason, support_reason
from statement_verdicts
where run_id = getvariable('latest') and label = 'FP' and not supported
order by sample_id, ordinal;

-- Which documents mislead, in support of FP statements
-- gives context_id, n_statements, n_samples, context
select context_id, sum(n_false) as n_statements, count(*) as n_samples, any_value(text) as context
from retrieved_contexts
where run_id = getvariable('latest') and n_false > 0
group by coalesce(context_id, text), context_id
order by n_statements desc, context_id;

-- Which documents were judged and never useful
-- gives context_id, n_judged, context
select context_id, count(*) as n_judged, any_value(text) as context
from retrieved_contexts
where run_id = getvariable('latest') and useful is not null
group by coalesce(context_id, text), context_id
having not bool_or(useful)
order by n_judged desc, context_id;

-- What was retrieved but not stated, FN though contexts support it
-- gives sample_id, statement_id, text, support_ranks, label_reason
select sample_id, statement_id, text, support_ranks, label_reason
from statement_verdicts
where run_id = getvariable('latest') and label = 'FN' and supported
order by sample_id, ordinal;

-- At which ranks the useful contexts stand
-- gives context_rank, n_contexts, n_useful, share
select context_rank, count(*) as n_contexts, count(*) filter (where useful) as n_useful, n_useful / n_contexts as share
from context_verdicts
where run_id = getvariable('latest')
group by context_rank
order by context_rank;

-- Why samples fail, in the newest run and the one before
-- gives run_id, judge, cause, n_samples, share
with counted as (
    select run_id, cause, n_samples, share from run_causes where run_id = getvariable('latest')
    union all
    select run_id, cause, n_samples, share from run_causes where run_id = getvariable('previous')
)
select run_id, judge, cause, counted.n_samples, share
from counted
inner join runs using (run_id)
where counted.n_samples > 0
order by run_id desc, counted.n_samples desc, cause;

-- How sure the judge is, by votes
-- gives run_id, step, n_items, n_flipped, flip_rate, against_rate
select run_id, step, n_items, n_flipped, flip_rate, against_rate
from vote_flips
order by run_id desc, flip_rate desc, step;

-- On which statements and contexts the votes are split
-- gives sample_id, step, item_id, verdicts, reasons
select sample_id, step, item_id, list(verdict order by vote) as verdicts, list(reason order by vote) as reasons
from votes
where run_id = getvariable('latest')
group by sample_id, step, item_id
having bool_or(not agrees)
order by sample_id, step, item_id;

-- Where a rubric's rule changed the judge's word
-- gives run_id, sample_id, rubric, criterion, said, rating, rule, reason
select run_id, sample_id, rubric, criterion, said, rating, rule, reason
from grades
where rating <> said
order by run_id desc, sample_id, rubric, criterion;

-- Answer relevancy's regenerated questions
-- gives sample_id, question, regenerated, similarity
select sample_id, samples.question, similarities.text as regenerated, similarities.value as similarity
from similarities
inner join run_samples using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
where run_id = getvariable('latest') and kind = 'regenerated_question'
order by sample_id, similarity;

-- The lineage of one score, down to the raw reply
-- gives step, statement_id, statement, label, reason, model, prompt, prompt_version, reply
select step, statement_id, statement, label, reason, model, prompt, prompt_version, reply
from score_lineage
where run_id = getvariable('latest') and sample_id = 'tide-1' and metric = 'factual_f1'
order by step, ordinal;

-- The score by a column of your own dataset
-- gives harbour, metric, mean, n_scored, n_unscored
select coalesce(run_samples.metadata, samples.metadata) ->> 'harbour' as harbour, metric, avg(value) as mean,
       count(value) as n_scored, count(*) - count(value) as n_unscored
from scores
inner join run_samples using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
where run_id = getvariable('latest')
group by harbour, metric
order by metric, harbour;

-- The scores by turn of the conversation
-- gives turn, metric, mean, give_or_take, n_scored, n_unscored
select coalesce((coalesce(run_samples.metadata, samples.metadata) ->> '$.turn')::integer,
                1 + coalesce(len(list_filter(samples.conversation ->> '$[*].role', lambda role: role = 'user')), 0)) as turn,
       metric, avg(value) as mean, 1.96 * stddev_samp(value) / sqrt(count(value)) as give_or_take,
       count(value) as n_scored, count(*) - count(value) as n_unscored
from scores
inner join run_samples using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
where run_id = getvariable('latest')
group by turn, metric
order by metric, turn;

-- Why it failed, by turn of the conversation
-- gives turn, cause, n_samples, share
select coalesce((coalesce(run_samples.metadata, samples.metadata) ->> '$.turn')::integer,
                1 + coalesce(len(list_filter(samples.conversation ->> '$[*].role', lambda role: role = 'user')), 0)) as turn,
       cause, count(*) as n_samples, count(*) / sum(count(*)) over (partition by turn) as share
from sample_causes
inner join run_samples using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
where run_id = getvariable('latest')
group by turn, cause
order by turn, n_samples desc, cause;

-- The scores by conversation
-- gives conversation, metric, mean, lowest, n_scored, n_unscored
select coalesce(cluster, coalesce(run_samples.metadata, samples.metadata) ->> '$.conversation_id', sample_id)
           as conversation, metric, avg(value) as mean, min(value) as lowest,
       count(value) as n_scored, count(*) - count(value) as n_unscored
from scores
inner join run_samples using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
where run_id = getvariable('latest')
group by all
order by metric, mean, conversation;

-- Faithfulness to the contexts alone, and what earlier turns add to it
-- gives sample_id, faithfulness, faithfulness_to_contexts, n_from_turns
select sample_id, count(*) filter (where supported) / count(*) as faithfulness,
       count(*) filter (where supported_by_contexts) / count(*) as faithfulness_to_contexts,
       count(*) filter (where supported and not supported_by_contexts) as n_from_turns
from statement_verdicts
where run_id = getvariable('latest') and source = 'answer' and supported is not null
group by sample_id
order by n_from_turns desc, faithfulness, sample_id;

-- How much of what each judge writes for a test set people accept
-- gives judge, kind, language, n, acceptance, n_fixed, n_dropped
select judge, kind, language, count(*) as n, count(*) filter (decision = 'accepted') / count(*) as acceptance,
       count(*) filter (decision = 'fixed') as n_fixed, count(*) filter (decision = 'dropped') as n_dropped
from question_reviews
group by judge, kind, language
order by judge, acceptance, kind, language;

-- Statements that the answer cites something for which does not support them
-- gives sample_id, statement, cited, supported_by
select sample_id, text as statement, list(distinct marker order by marker) as cited, any_value(support_ranks) as supported_by
from statement_citations as cited
inner join statement_verdicts using (run_id, sample_id, statement_id)
where run_id = getvariable('latest') and not (cited.supported and all_retrieved)
group by sample_id, text
order by sample_id, text;

-- Which of two answers was preferred, and where the order decided
-- gives run_id, sample_id, winner, orders, base_first, candidate_first, why
select run_id, sample_id, winner, orders, base_first, candidate_first, base_first_reason as why
from sample_preferences
order by run_id desc, points, sample_id;

-- Which prompts each run used
-- gives started_at, run_id, prompt, version, language, prompt_hash, n_calls
select runs.started_at, run_id, prompts.prompt, version, prompts.language, prompt_hash, count(*) as n_calls
from llm_calls
inner join runs using (run_id)
inner join prompts using (prompt_hash)
group by all
order by runs.started_at desc, prompts.prompt, prompt_hash;
