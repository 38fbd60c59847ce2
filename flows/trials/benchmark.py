"""`benchmark`: a judge asked about labelled rows, the way a run asks it.

The requests are those of a run, so that a reply on record is used again: a benchmark that was stopped goes on where it
was when the same command is given again, and with more rows only these are paid for. The calls belong to a run of their
own, of kind `benchmark`, which has no samples and no scores, and which no word or label finds.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import keep_prompts, make_live_run, make_prompts
from evalhouse.flows.preparing.request import begin_run, now_utc
from evalhouse.flows.run.estimate import DryJudge, DryRecord
from evalhouse.tasks.asking.asker import CallCounts
from evalhouse.tasks.asking.finder import ReplyFinder
from evalhouse.tasks.asking.shared_limit import share_limits
from evalhouse.tasks.judge.errors import FatalJudgeError, RunCancelled
from evalhouse.tasks.models.make import make_judge
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.plan import Plan
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.trials.labelled_sets import Kind, Part
from evalhouse.tasks.trials.labelled_verdicts import GRADED_BY, STEPS, Judged, judge_part
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import RunStatus, insert_run, update_run
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.free_space import check_room

_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM)
_DRAIN_S: Final = 3.0
_UNREADABLE = """
select sample_id, count(*) as n
from llm_calls
where run_id = $run_id and status = 'error' and reply is not null
group by sample_id
"""

Watch = Callable[[LiveRun], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What asking took or would take; `cost_usd` is None without a known price.

    `failed` requests brought no usable reply, `unreadable` ones among them brought a reply that could not be read.
    """

    requests: int = 0
    reused: int = 0
    failed: int = 0
    unreadable: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    """A set in one language with what the judge said of each row."""

    part: Part
    judged: Sequence[Judged]
    costs: Costs


@dataclass(frozen=True, kw_only=True)
class BenchmarkOutcome:
    """What came of it. `problem` says what ended the asking early: rows that were not reached have no verdict."""

    run_id: str
    parts: Sequence[JudgedPart]
    problem: str | None


def run_benchmark(settings: RunSettings, parts: Sequence[Part], watch: Watch) -> BenchmarkOutcome:
    """Ask about all rows; raises FatalJudgeError when the judge cannot be asked at all."""
    store = Warehouse(settings.warehouse)
    store.migrate()
    check_room(store)
    take_in_orphans(store)
    judge = make_judge(settings)
    tags = tuple(dict.fromkeys(part.name for part in parts))
    run = begin_run("benchmark", settings, tags=tags, n_samples=sum(len(part.rows) for part in parts))
    with hold_run(store.location, run.run_id):
        live_run = make_live_run(run.run_id, settings, _plan(settings, parts), judge, store)
        insert_run(store, run)
        status: RunStatus = "failed"
        problem = None
        try:
            judged, problem = asyncio.run(_ask_all(live_run, parts, watch))
            failures = any(one.failure is not None for part in judged for one in part.judged)
            status = "cancelled" if problem is not None else "incomplete" if failures else "completed"
        except FatalJudgeError as error:
            problem = str(error)
            raise
        finally:
            update_run(store, run.run_id, status=status, finished_at=now_utc(), problem=problem)
    unreadable: dict[str, int] = dict(store.read(_UNREADABLE, {"run_id": run.run_id}).iter_rows())
    return BenchmarkOutcome(
        run_id=run.run_id,
        parts=[_count_unreadable(one, unreadable) for one in judged],
        problem=problem,
    )


def estimate_benchmark(settings: RunSettings, parts: Sequence[Part]) -> list[Costs]:
    """What asking about each part would take, less what is on record, with nothing asked and nothing written."""
    # Nothing is sent, so a price can be had before there is a key.
    os.environ.setdefault("OPENAI_API_KEY", "none-needed-for-a-dry-run")
    store = Warehouse(settings.warehouse)
    known = store.exists() and not settings.fresh
    record = DryRecord(finder=ReplyFinder(store) if known else None)
    unlimited = settings.model_copy(update={"rpm": None, "tpm": None, "budget_usd": None})
    return asyncio.run(_ask_dry(unlimited, parts, store, record))


async def _ask_dry(settings: RunSettings, parts: Sequence[Part], store: Warehouse, record: DryRecord) -> list[Costs]:
    judge = DryJudge(make_judge(settings))
    costs = []
    try:
        live_run = make_live_run("dry-run", settings, _plan(settings, parts), judge, store, record=record)
        record.price = live_run.asker.price
        for part in parts:
            record.tallies.clear()
            await judge_part(_fit(live_run, part), part, lambda: None)
            tallies = list(record.tallies.values())
            priced = all(tally.priced for tally in tallies)
            costs.append(
                Costs(
                    requests=sum(tally.requests for tally in tallies),
                    reused=sum(tally.reused for tally in tallies),
                    prompt_tokens=sum(tally.prompt_tokens for tally in tallies),
                    completion_tokens=sum(tally.completion_tokens for tally in tallies),
                    cost_usd=sum(tally.cached_usd + tally.saved_usd for tally in tallies) if priced else None,
                )
            )
    finally:
        await judge.close()
    return costs


async def _ask_all(live_run: LiveRun, parts: Sequence[Part], watch: Watch) -> tuple[list[JudgedPart], str | None]:
    """All parts, one after the other, and what stopped the asking if anything did."""
    loop = asyncio.get_running_loop()
    for number in _INTERRUPTS:
        stop = partial(live_run.stop, RunCancelled(f"stopped by {number.name}"), drain_s=_DRAIN_S)
        loop.add_signal_handler(number, stop)
    live_run.progress.n_samples = sum(len(part.rows) for part in parts)
    live_run.progress.what = "rows"
    try:
        async with share_limits(live_run.shared_limits, concurrency=live_run.settings.concurrency):
            with watch(live_run):
                return await _ask_in_turn(live_run, parts)
    finally:
        for number in _INTERRUPTS:
            loop.remove_signal_handler(number)
        await live_run.close()
        await asyncio.to_thread(live_run.asker.record.close)


async def _ask_in_turn(live_run: LiveRun, parts: Sequence[Part]) -> tuple[list[JudgedPart], str | None]:
    def note_done() -> None:
        live_run.progress.n_done += 1

    judged: list[JudgedPart] = []
    for part in parts:
        fitted = _fit(live_run, part)
        await asyncio.to_thread(keep_prompts, fitted)
        before = replace(live_run.asker.counts)
        said = await judge_part(fitted, part, note_done)
        judged.append(JudgedPart(part=part, judged=said, costs=_sum_up(before, live_run.asker.counts)))
    stopped = None
    try:
        live_run.asker.raise_if_stopped()
    except FatalJudgeError as error:
        stopped = str(error)
    return judged, stopped


def _fit(live_run: LiveRun, part: Part) -> LiveRun:
    """The live run with the steps of the part's kind and the prompts of its language."""
    settings = live_run.settings.model_copy(update={"language": part.language})
    judge = live_run.asker.judge
    prompts = make_prompts(settings, judge)
    rubrics = (prompts[GRADED_BY],) if part.kind == "rubric" and judge.name != "lexical" else ()
    return replace(
        live_run,
        settings=settings,
        prompts=prompts,
        steps=frozenset(STEPS[part.kind]),
        rubrics=rubrics,
        session=secrets.token_hex(4),
    )


def _plan(settings: RunSettings, parts: Sequence[Part]) -> Plan:
    """The steps of all kinds there are; refuses what these cannot be asked with."""
    if not any(part.rows for part in parts):
        raise SettingsError("no row is left to judge; take another --half, or more folders")
    kinds: set[Kind] = {part.kind for part in parts}
    return Plan(metrics=(), steps=frozenset(step for kind in kinds for step in STEPS[kind]), optional_steps=frozenset())


def _sum_up(before: CallCounts, after: CallCounts) -> Costs:
    return Costs(
        requests=after.requests - before.requests,
        reused=after.reused - before.reused,
        failed=after.failed - before.failed,
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        completion_tokens=after.completion_tokens - before.completion_tokens,
        cost_usd=after.cost_usd - before.cost_usd if after.priced else None,
    )


def _count_unreadable(one: JudgedPart, by_sample: Mapping[str, int]) -> JudgedPart:
    """A row's sample id begins with its set's name; two languages of one set are told apart by their rows."""
    ids = {f"{one.part.name}/{row.id}" for row in one.part.rows}
    n = sum(count for sample_id, count in by_sample.items() if sample_id in ids or sample_id[:-2] in ids)
    return replace(one, costs=replace(one.costs, unreadable=n))
