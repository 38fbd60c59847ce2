"""What a report of a run is made of, read from the warehouse in a few queries.

What is about the run as a whole comes at once. What is about its samples comes in slices of the run's order, because
texts, verdicts and raw calls of a large run are too much for memory together. `flows/report/samples.py` makes records
of these rows, `flows/report/page.py` the page.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]

SLICE_SAMPLES: Final = 500
"""Samples whose rows are in memory together; a few megabytes with the requests of a chat model."""

_METRICS = """
select run_scores.*, score_history.change, score_history.previous_run_id, score_history.same_yardstick
from run_scores
left join score_history
    on score_history.run_id = run_scores.run_id
    and score_history.metric = run_scores.metric
where run_scores.run_id = $run_id
"""
# The series up to this run: a report of an old run does not change when later ones are added.
_HISTORY = """
with here as (
    select series, started_at, run_id
    from run_series
    where run_id = $run_id
)

select
    score_history.metric,
    score_history.run_id,
    score_history.started_at,
    score_history.judge,
    score_history.mean,
    score_history.ci_low,
    score_history.ci_high,
    score_history.n_scored,
    score_history.same_yardstick,
    score_history.status
from score_history
inner join here
    on here.series = score_history.series
    and (score_history.started_at, score_history.run_id) <= (here.started_at, here.run_id)
order by score_history.metric, score_history.started_at, score_history.run_id
"""
# All columns: a warehouse that was last written by an older evalhouse has fewer.
_COSTS = "select * exclude run_id from run_costs where run_id = $run_id order by step"
_FLIPS = "select * exclude run_id from vote_flips where run_id = $run_id order by step"
_UNSCORED = """
select reason, metric, count(*) as n_samples, any_value(detail) as example
from unscored
where run_id = $run_id
group by reason, metric
order by reason, metric
"""
# A sample that has no score yet keeps one row, so that every sample has its place.
_SCORES = """
select run_samples.sample_id, scores.metric, scores.value, scores.unscored_reason
from run_samples
left join scores
    on scores.run_id = run_samples.run_id
    and scores.sample_id = run_samples.sample_id
where run_samples.run_id = $run_id
order by run_samples.ordinal, run_samples.sample_id
"""
_BASE_SCORES = """
select run_samples.sample_id, scores.metric, scores.value
from run_samples
inner join scores on scores.sample_id = run_samples.sample_id
where run_samples.run_id = $run_id and scores.run_id = $base
"""

_CAUSES = "select sample_id, cause from sample_causes where run_id = $run_id and cause is not null"

_PLACES = """
select sample_id, ordinal
from run_samples
where run_id = $run_id
order by ordinal, sample_id
limit $n offset $start
"""
_IN_SLICE = f"with slice as ({_PLACES}) "
_SAMPLES = (
    _IN_SLICE
    + """
select
    slice.ordinal,
    samples.* exclude (metadata),
    coalesce(run_samples.metadata, samples.metadata)::varchar as metadata
from slice
inner join run_samples
    on run_samples.run_id = $run_id
    and run_samples.sample_id = slice.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
order by slice.ordinal, slice.sample_id
"""
)
_VERDICTS = (
    _IN_SLICE
    + """
select verdicts.* exclude (run_id)
from slice
inner join verdicts on verdicts.sample_id = slice.sample_id
where verdicts.run_id = $run_id
order by slice.ordinal, verdicts.step, verdicts.source, verdicts.ordinal, verdicts.context_rank, verdicts.criterion
"""
)
_FAILURES = (
    _IN_SLICE
    + """
select outcomes.sample_id, outcomes.step, outcomes.reason, outcomes.detail
from slice
inner join outcomes on outcomes.sample_id = slice.sample_id
where outcomes.run_id = $run_id and outcomes.reason is not null
order by slice.ordinal, outcomes.step
"""
)
# A reply from the record has its request and its text with the call that first got it, maybe in an earlier run. Those
# are looked for among the few calls that are named, not joined to: DuckDB would read every text on record.
_CALLS = (
    _IN_SLICE
    + """,
own as (
    select llm_calls.*
    from slice
    inner join llm_calls on llm_calls.sample_id = slice.sample_id
    where llm_calls.run_id = $run_id
),

originals as (
    select call_id, run_id, model, request, reply
    from llm_calls
    where call_id in (select reused_call_id from own where reused_call_id is not null)
)

select
    own.sample_id,
    own.call_id,
    own.step,
    own.status,
    own.error,
    own.attempts,
    own.prompt_tokens,
    own.completion_tokens,
    own.cost_usd,
    own.latency_ms,
    coalesce(originals.model, own.model) as model,
    coalesce(originals.request, own.request)::varchar as request,
    coalesce(originals.reply, own.reply) as reply,
    originals.run_id as original_run_id,
    prompts.prompt,
    prompts.version as prompt_version
from own
left join originals on originals.call_id = own.reused_call_id
left join prompts on prompts.prompt_hash = own.prompt_hash
order by own.sample_id, own.started_at, own.call_id
"""
)
_VOTES = (
    _IN_SLICE
    + """
select votes.sample_id, votes.step, votes.item_id, votes.verdict, count(*) as n, bool_and(votes.agrees) as agrees
from slice
inner join votes on votes.sample_id = slice.sample_id
where votes.run_id = $run_id
group by all
order by votes.sample_id, votes.step, votes.item_id, agrees desc, n desc, votes.verdict
"""
)
_BASE_ANSWERS = (
    _IN_SLICE
    + """
select slice.sample_id, samples.answer
from slice
inner join run_samples
    on run_samples.run_id = $base
    and run_samples.sample_id = slice.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
"""
)


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What there is to tell about the run as a whole, as rows of the views.

    `scores` has a row per sample and metric, in the run's order; `base_scores` are those of the
    other run's scores whose sample is in this run as well. `causes` is by sample;
    `flips` is empty where nothing was voted on.
    """

    metrics: Rows
    history: Rows
    costs: Rows
    flips: Rows
    unscored: Rows
    scores: Rows
    causes: Mapping[str, str]
    base_scores: Rows


@dataclass(frozen=True, kw_only=True)
class SampleSlice:
    """Everything about some samples, as rows in the run's order; all but `samples` have a `sample_id` to join by."""

    samples: Rows
    verdicts: Rows
    failures: Rows
    calls: Rows
    votes: Rows
    base_answers: Rows


def read_summary(store: Warehouse, run: RunRow, base: RunRow | None) -> RunSummary:
    """The run as a whole, beside another one or alone."""
    of_run = {"run_id": run.run_id}
    return RunSummary(
        metrics=store.read_rows(_METRICS, of_run),
        history=store.read_rows(_HISTORY, of_run),
        costs=store.read_rows(_COSTS, of_run),
        flips=store.read_rows(_FLIPS, of_run) if was_voted(run) else [],
        unscored=store.read_rows(_UNSCORED, of_run),
        scores=store.read_rows(_SCORES, of_run),
        causes={str(row["sample_id"]): str(row["cause"]) for row in store.read_rows(_CAUSES, of_run)},
        base_scores=store.read_rows(_BASE_SCORES, {**of_run, "base": base.run_id}) if base else [],
    )


def read_slices(
    store: Warehouse, run: RunRow, base: RunRow | None, *, with_calls: bool, size: int = SLICE_SAMPLES
) -> Iterator[SampleSlice]:
    """The run's samples in its order, so many at a time."""
    start = 0
    while True:
        of_slice = {"run_id": run.run_id, "start": start, "n": size}
        samples = store.read_rows(_SAMPLES, of_slice)
        if not samples:
            return
        yield SampleSlice(
            samples=samples,
            verdicts=store.read_rows(_VERDICTS, of_slice),
            failures=store.read_rows(_FAILURES, of_slice),
            calls=store.read_rows(_CALLS, of_slice) if with_calls else [],
            votes=store.read_rows(_VOTES, of_slice) if was_voted(run) else [],
            base_answers=store.read_rows(_BASE_ANSWERS, {**of_slice, "base": base.run_id}) if base else [],
        )
        start += size


def was_voted(run: RunRow) -> bool:
    """Whether verdicts were voted on; only then the warehouse is sure to have the table of votes."""
    return int(run.config.get("votes", 1)) > 1
