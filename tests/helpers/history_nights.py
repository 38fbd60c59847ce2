"""A warehouse with many nights of one suite, written by SQL: what a team has on record after half a year.

Every night judges the same samples. Some answers and contexts are others than the night before, the judge now and then
changes verdicts on unchanged samples, and once in the series there is a new judge, a new prompt, another
formula and another knowledge base. Everything follows from hashes of sample, night and statement, so that equal sizes
give equal warehouses. Scores are counted from the statements that stand beside them; what is stored of runs that have
ended is stored as at their end.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import duckdb
from rows import derive_all
from warehouse_runs import lay_warehouse

from evalhouse.warehouse.store import Warehouse

SUITE: Final = "nightly"
FIRST_NIGHT: Final = datetime(2025, 5, 5, 2)

# By metric its value over one row of `counted`; the order is that in which a smaller number of metrics is taken.
METRICS: Final = {
    "answer_correctness": "0.75 * tp / nullif(tp + 0.5 * (fp + fn), 0) + 0.25 * similarity",
    "faithfulness": "answer_supported / nullif(tp + fp, 0)",
    "factual_f1": "tp / nullif(tp + 0.5 * (fp + fn), 0)",
    "context_recall": "truth_supported / nullif(fn + found, 0)",
    "context_precision": "coalesce(list_avg(list_transform(useful_ranks, lambda r, i: i / r)), 0)",
    "hallucination": "unsupported_fp / nullif(tp + fp, 0)",
    "relevance_final": "relevance / 10",
    "answer_relevancy": "relevancy",
    "factual_precision": "tp / nullif(tp + fp, 0)",
    "factual_recall": "found / nullif(found + fn, 0)",
    "semantic_similarity": "similarity",
    "context_utilization": "least(1, tp / nullif(truth_supported, 0))",
    "self_knowledge": "unsupported_tp / nullif(tp + fp, 0)",
    "noise_sensitivity_relevant": "(fp - unsupported_fp) / nullif(tp + fp, 0)",
    "mrr": "coalesce(1 / list_min(useful_ranks), 0)",
}

_MACROS = """
-- A number from 0 to 1 that follows from what it is given.
create temp macro draw(a, b, c, d) as (hash(a, b, c, d) % 1000003) / 1000003;
create temp macro make_id(a, b, c) as lower(to_hex(hash('id', a, b, c)))
"""
# A night asks again about what has changed since: all of it where the judge or the prompts are others.
_NIGHTS = """
create temp table nights as
select
    night,
    $first + night * interval 1 day as started_at,
    strftime(started_at, '%Y%m%d-%H%M%S') || '-' || right(make_id('run', night, 0), 4) as run_id,
    if(night < $nights * 0.6, 'openai:judge-small', 'openai:judge-large') as judge,
    if(night < $nights * 0.3, 1, 2) as prompt_version,
    if(night < $nights * 0.8, '1', '2') as formula,
    night // 20 as kb,
    night = $nights - 1 as is_last,
    night >= $nights * 0.95 as is_voted,
    coalesce(lag({j: judge, p: prompt_version}) over (order by night) <> {j: judge, p: prompt_version}, true)
        as is_new_judge
from range($nights) as numbered (night)
"""
_PLACES = """
create temp table places as
with moved as (
    select
        nights.*,
        sample,
        'tide-' || (sample + 1) as sample_id,
        draw('change', sample, night, 0) < if(is_last, 0.08, 0.03) and night > 0 as is_changed
    from nights, range($samples) as numbered (sample)
),

versioned as (
    select
        *,
        count(*) filter (where is_changed) over so_far as version,
        coalesce(max(night) filter (where is_changed) over so_far, 0) as version_night,
        max(night) filter (where is_changed or is_new_judge) over so_far as asked_night
    from moved
    window so_far as (partition by sample order by night)
)

-- Every other change is one of the contexts, which leaves the answer as it was.
select *, (version + 1) // 2 as answer_version, version // 2 as contexts_version,
       'h' || make_id('input', sample, version) as input_hash
from versioned
order by night, sample
"""
_LABELLED = """
create temp table labelled as
with rolled as (
    select
        night, run_id, sample, sample_id, asked_night, answer_version, contexts_version,
        place <= 4 as is_answer,
        if(is_answer, place, place - 4)::integer as ordinal,
        if(is_answer, 'A', 'G') || ordinal as statement_id,
        -- The judge changes its mind about one statement in two hundred.
        draw('mind', sample, night, place) < 0.005 as is_flipped,
        draw('label', sample, if(is_answer, answer_version, answer_version + 1000), place)
            < if(is_last and is_changed, 0.5, 0.74 + 0.1 * night / $nights + 0.02 * (kb % 3)) as is_good,
        draw('support', sample, contexts_version, place) < if(is_good, 0.93, 0.35) as is_supported,
        1 + (hash('rank', sample, contexts_version, place) % 5)::integer as context_rank
    from places, range(1, 8) as numbered (place)
)

select
    *,
    case when is_good <> is_flipped then 'TP' when is_answer then 'FP' else 'FN' end as label
from rolled
"""
_COUNTED = """
create temp table counted as
with by_sample as (
    select
        night,
        sample,
        count(*) filter (where is_answer and label = 'TP') as tp,
        count(*) filter (where label = 'FP') as fp,
        count(*) filter (where label = 'FN') as fn,
        count(*) filter (where not is_answer and label = 'TP') as found,
        count(*) filter (where is_answer and is_supported) as answer_supported,
        count(*) filter (where not is_answer and is_supported) as truth_supported,
        count(*) filter (where label = 'FP' and not is_supported) as unsupported_fp,
        count(*) filter (where is_answer and label = 'TP' and not is_supported) as unsupported_tp
    from labelled
    group by all
)

select
    places.*,
    by_sample.* exclude (night, sample),
    list_filter(range(1, 6), lambda r: draw('useful', sample, contexts_version, r) < 0.85 - 0.06 * r) as useful_ranks,
    round(0.55 + 0.4 * draw('similarity', sample, answer_version, 0), 6) as similarity,
    round(0.5 + 0.5 * draw('relevancy', sample, answer_version, 0), 6) as relevancy,
    4 + hash('relevance', sample, version) % 7 as relevance,
    draw('failed', sample, night, 0) < 0.003 as is_failed
from places
inner join by_sample using (night, sample)
order by night, sample
"""

_RUNS = """
insert into runs by name
select
    run_id, $suite as suite, if(is_voted, 'night ' || night, null) as label, ['main'] as tags,
    'tides.jsonl' as dataset, 'd' || hash(kb) as dataset_hash, judge, 'hashing' as embeddings, 'en' as language,
    $names as metrics, case when night % 25 = 3 then 'manual' when night % 10 = 0 then 'event' else 'schedule' end
    as "trigger", 'manual' as kb_name, 'v' || kb as kb_version,
    if(n_failed > $samples * 0.004, 'incomplete', 'completed') as status,
    started_at, started_at + interval 20 minute as finished_at, $samples as n_samples,
    {votes: if(is_voted, 3, 1), temperature: 0.0, prompts: prompt_version}::json as config,
    'evaluation' as kind, 's1' as suite_hash, 'c' || night // 7 as code_version,
    if(draw('gate', night, 0, 0) < 0.1, 'failed', 'passed') as gate
from nights
inner join (select night, count(*) filter (where is_failed) as n_failed from counted group by night) using (night)
order by night
"""
_TEXTS = """
insert into samples by name
select
    input_hash, sample_id,
    'When is high tide at berth ' || sample || ', and who has to be told of it before a ship leaves?' as question,
    'High tide is at ' || sample % 12 || '. ' || repeat('The keeper wrote it down for ' || version || '. ', 6)
        as answer,
    'The tables say that high tide at berth ' || sample || ' is at ' || sample % 12
        || '. The harbour master is told first.' as ground_truth,
    list_transform(range(1, 6), lambda r: 'Page ' || r || ' on berth ' || sample || ', edition ' || contexts_version
        || '. ' || repeat('The tables say how the water stands at berth ' || sample || ' on day ' || r || '. ', 6))
        as contexts,
    list_transform(range(1, 6), lambda r: 'doc-' || hash('doc', sample, contexts_version, r) % 2000) as context_ids,
    {harbour: ['north', 'south', 'east'][1 + sample % 3]}::json as metadata
from places
where night = version_night
order by night, sample
"""
_RUN_SAMPLES = """
insert into run_samples by name
select run_id, sample_id, input_hash, sample + 1 as ordinal from places order by night, sample
"""
_STATEMENTS = """
insert into statements by name
select
    run_id, sample_id, statement_id, if(is_answer, 'answer', 'ground_truth') as source, ordinal,
    'At berth ' || sample || ' the water of day ' || ordinal || ' stands as table ' || if(is_answer, answer_version, 0)
        || ' tells.' as text,
    make_id(night, sample, if(is_answer, 'extract_answer', 'extract_ground_truth')) as call_id
from labelled order by night, sample, is_answer desc, ordinal
"""
_CLASSIFICATIONS = """
insert into classifications by name
select run_id, sample_id, statement_id, label,
       'Table ' || sample || ' says so about day ' || ordinal || ', as read in night ' || asked_night || '.' as reason,
       make_id(night, sample, 'classify') as call_id
from labelled order by night, sample, is_answer desc, ordinal
"""
_ATTRIBUTIONS = """
insert into attributions by name
select run_id, sample_id, statement_id, is_supported as supported,
       if(is_supported, [context_rank], []::integer[]) as context_ranks,
       'Context ' || context_rank || ' of edition ' || contexts_version || ' was read for day ' || ordinal || '.'
           as reason,
       make_id(night, sample, if(is_answer, 'attribute_answer', 'attribute_ground_truth')) as call_id
from labelled order by night, sample, is_answer desc, ordinal
"""
_CONTEXT_VERDICTS = """
insert into context_verdicts by name
select run_id, sample_id, r::integer as context_rank, list_contains(useful_ranks, r) as useful,
       'Page ' || r || ' was read in night ' || asked_night || '.' as reason, make_id(night, sample, 'rank') as call_id
from counted, range(1, 6) as numbered (r) order by night, sample, r
"""
_SIMILARITIES = """
insert into similarities by name
select run_id, sample_id, kind, value, text, call_id
from (
    select night, sample, run_id, sample_id, unnest([
        {kind: 'answer_ground_truth', value: similarity, text: null, call_id: null},
        {kind: 'regenerated_question', value: relevancy, text: 'When is high tide at berth ' || sample || '?',
         call_id: make_id(night, sample, 'relevancy')}
    ], recursive := true)
    from counted
) order by night, sample
"""
_GRADES = """
insert into grades by name
select run_id, sample_id, rubric, criterion, rating, 0.0 as scale_min, scale_max, said,
       if(rating <> said, 'capped', null) as rule, 'It says what was asked.' as reason,
       make_id(night, sample, step) as call_id
from (
    select night, sample, run_id, sample_id, unnest([
        {rubric: 'relevance', criterion: 'accuracy', rating: relevance, scale_max: 10.0, said: relevance,
         step: 'grade_relevance'},
        {rubric: 'relevance', criterion: 'final', rating: relevance / 10, scale_max: 1.0,
         said: if(sample % 50 = 0, 0.9, relevance / 10), step: 'grade_relevance'},
        {rubric: 'relevancy', criterion: 'noncommittal', rating: 0.0, scale_max: 1.0, said: 0.0, step: 'relevancy'}
    ], recursive := true)
    from counted
) order by night, sample
"""
_OUTCOMES = """
insert into outcomes by name
select run_id, sample_id, step, if(is_failed and step = 'rank', 'judge_failed', null) as reason,
       if(is_failed and step = 'rank', 'no complete JSON', null) as detail
from counted, unnest($steps) as named (step) order by night, sample
"""
_VOTES = """
insert into votes by name
select run_id, sample_id, 'classify' as step, statement_id as item_id, vote::integer as vote,
       if(agrees, label, if(label = 'TP', if(is_answer, 'FP', 'FN'), 'TP')) as verdict, agrees,
       'Read once more.' as reason, make_id(night, sample, 'classify') as call_id
from (
    select labelled.*, vote, vote < 3 or draw('vote', sample, night, statement_id) > 0.03 as agrees
    from labelled inner join nights using (night, run_id), range(1, 4) as numbered (vote)
    where is_voted
) order by night, sample, statement_id, vote
"""
_SCORES = """
insert into scores by name
with valued as (
    select night, sample, run_id, sample_id, is_failed, formula, unnest([{entries}], recursive := true)
    from counted
)

select run_id, sample_id, metric, if(is_missing, null, value) as value,
       case when is_failed and is_missing then 'judge_failed' when is_missing then 'no_statements' end
           as unscored_reason,
       if(metric = 'faithfulness', formula, '1') as metric_version,
       if(metric in ('hallucination', 'noise_sensitivity_relevant'), 'low', 'high') as better
from (select *, value is null or (is_failed and metric in ('context_precision', 'mrr')) as is_missing from valued)
order by night, sample
"""
_CALLS = """
insert into llm_calls by name
with asked as (
    select places.*, step, night = asked_night as is_asked, make_id(night, sample, step) as call_id
    from places, unnest($calls) as named (step)
)

select
    call_id, run_id, sample_id, step, split_part(step, '_', 1) as prompt,
    'p-' || split_part(step, '_', 1) || '-' || prompt_version as prompt_hash, judge, split_part(judge, ':', 2) as model,
    'r' || make_id(asked_night, sample, step) as request_hash, hash(request_hash) as request_key,
    if(is_asked, {
        model: model, temperature: 0, messages: [
            {role: 'system', content: repeat('Judge each item by what the texts say, and by nothing else. ', 20)},
            {role: 'user', content: 'Berth ' || sample || ', edition ' || version || '. '
                || repeat('Day ' || sample % 97 || ' stands as table ' || version || ' tells. ', 40)}
        ]
    }::json, null) as request,
    if(is_asked, '{"verdicts": [{"id": "A1", "reason": "Table ' || sample || ' says so.", "label": "TP"}]}', null)
        as reply,
    if(is_asked, 'ok', 'cached') as status, 1 as attempts,
    if(is_asked, 700 + sample % 300, null) as prompt_tokens, if(is_asked, 256, null) as cached_tokens,
    if(is_asked, 150 + sample % 90, null) as completion_tokens, if(is_asked, 0.0004, null) as cost_usd,
    if(is_asked, 400 + 3000 * draw('latency', sample, night, step), null) as latency_ms,
    if(is_asked, null, make_id(asked_night, sample, step)) as reused_call_id, started_at
from asked
order by night, sample
"""
_NOISE_RUNS = """
insert into runs by name
select runs.* replace (
    run_id || 'n' as run_id, null as label, 'noise' as kind, null as gate, finished_at as started_at,
    finished_at + interval 1 minute as finished_at, 60 as n_samples
), run_id as parent_run_id
from (select * exclude (parent_run_id) from runs where kind = 'evaluation' order by started_at) as runs
"""
_PROMPTS = """
insert into prompts by name
select distinct prompt_hash, prompt, prompt_hash[-1:] as version, 'en' as language, 'Judge each item.' as template
from llm_calls
"""
_NOISE = """
insert into noise by name
select run_id, run_id || 'n' as noise_run_id, unnest($names) as metric, 60 as n_samples,
       (hash(run_id, metric) % 5)::bigint as n_changed, 0.0 as mean_difference, n_changed / 300 as sd_difference
from nights order by night
"""
STEPS: Final = (
    "extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth", "rank",
    "similarity", "relevancy", "grade_relevance",
)  # fmt: skip
CALL_STEPS: Final = (
    "extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth", "rank",
    "relevancy", "grade_relevance",
)  # fmt: skip
_MADE = (_NIGHTS, _PLACES, _LABELLED, _COUNTED)
_WRITTEN = (
    _RUNS, _TEXTS, _RUN_SAMPLES, _STATEMENTS, _CLASSIFICATIONS, _ATTRIBUTIONS, _CONTEXT_VERDICTS, _SIMILARITIES,
    _GRADES, _OUTCOMES, _VOTES, _CALLS, _PROMPTS, _NOISE, _NOISE_RUNS,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a history: nights, samples a night, and how many of METRICS each sample is scored by."""

    nights: int
    samples: int
    metrics: int = len(METRICS)


def write_nights(path: Path, size: Size) -> None:
    """Make a warehouse of this size at `path`, where there must be none; runs of one night are in one stretch."""
    lay_warehouse(path)
    names = list(METRICS)[: size.metrics]
    values = {
        "first": FIRST_NIGHT, "nights": size.nights, "samples": size.samples, "suite": SUITE, "names": names,
        "steps": list(STEPS), "calls": list(CALL_STEPS),
    }  # fmt: skip
    entries = ", ".join(f"{{metric: '{name}', value: ({METRICS[name]})::double}}" for name in names)
    with duckdb.connect(str(path)) as connection:
        connection.execute("set memory_limit = '2GB'")  # a writer that is kept open has less
        for macro in _MACROS.split(";"):
            connection.execute(macro)
        for sql in (*_MADE, *_WRITTEN, _SCORES.replace("{entries}", entries)):
            connection.execute(sql, {name: value for name, value in values.items() if f"${name}" in sql})
        connection.execute("checkpoint")
        connection.execute("set memory_limit = '192MB'")
    with Warehouse(str(path)).writing() as writing:
        derive_all(writing)
