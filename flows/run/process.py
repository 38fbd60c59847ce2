"""The process of one run: its locks, server and warehouse, the live run, and how it ended.

`evaluate` opens it for commands, suites and calls from Python, which carry the run out as a flow run; the flow of a
deployment opens it from within. They differ in `FlowFinder`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evalhouse.flows.preparing.request import RunRequest
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.run.outcome import Finish, RunOutcome, Watch, show_end
from evalhouse.flows.server.environment import find_api_url
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.server.local import prefect_server
from evalhouse.flows.server.outages import describe_outage, is_outage
from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeError, RunCancelled
from evalhouse.tasks.settings.run import RunSettings, read_settings
from evalhouse.warehouse.engine.connection import writer_kept
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.again import find_replayed_base
from evalhouse.warehouse.rows.calls import count_responses
from evalhouse.warehouse.rows.runs import (
    RunKind,
    RunRow,
    RunStatus,
    end_run,
    find_run,
    hold_suite,
    insert_run,
    now_utc,
    refuse_forgotten,
    update_run,
)
from evalhouse.warehouse.rows.samples import count_samples
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    import polars as pl

    from evalhouse.flows.preparing.live_run import PreparedRun
    from evalhouse.tasks.pipeline.live_run import LiveRun
# How long replies that are under way may still take after Ctrl-C.
_DRAIN_S = 3.0
# A run of so many samples at most is as a rule over before anybody misses the file that it keeps open.
_SHORT = 50


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_notice(f"warning: {record.getMessage()}")


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print our own warnings as notices within this block: Prefect, once imported, has muted the terminal for all."""
    logger, notices = logging.getLogger("evalhouse"), _Notices(logging.WARNING)
    logger.addHandler(notices)
    try:
        yield
    finally:
        logger.removeHandler(notices)


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A run that is gone on with, and the settings it is gone on with."""

    run: RunRow
    settings: RunSettings


FlowCall = Callable[["LiveRun", RunKind], Coroutine[Any, Any, None]]
FlowFinder = Callable[[], FlowCall]
"""Gives what takes a live run to its end. Prefect is imported by the finder, while its server comes up."""


async def start(process: "RunProcess", request: RunRequest, source: "str | pl.DataFrame") -> RunOutcome:
    """Prepare a new run and take it to its end; raises the errors of whatever can be refused beforehand."""
    from evalhouse.flows.preparing.live_run import prepare_run  # noqa: PLC0415  # a second, in which the server comes up

    prepared = prepare_run(request, source, process.warehouse)
    if _is_new(process.warehouse):
        _make_ready(process.warehouse)
    with hold_run(process.warehouse.location, prepared.run.run_id):
        return await process.run(prepared, partial(insert_run, process.warehouse, prepared.run))


async def go_on(process: "RunProcess", run: RunRow, settings: RunSettings) -> RunOutcome:
    """Go on with a run where it stopped; the process holds it."""
    from evalhouse.flows.preparing.live_run import prepare_again  # noqa: PLC0415

    run = replace(run, status="running", finished_at=None, problem=None)
    prepared = prepare_again(run, settings, process.warehouse)
    begin = partial(update_run, process.warehouse, run.run_id, status="running", finished_at=None, problem=None)
    return await process.run(prepared, begin)


def find_unfinished(wanted: str, *, warehouse_url: str, changes: Mapping[str, object]) -> Unfinished:
    """The run that is to be gone on with and its own settings but for `changes`; raises WarehouseError for a run that
    another one goes on with, or a command."""
    run = find_run(Warehouse(warehouse_url), wanted)
    if run.kind == "noise":
        raise WarehouseError(
            f"run {run.run_id} measured the noise of {run.parent_run_id}; the next run measures it again"
        )
    if run.kind == "repeats":
        raise WarehouseError(
            f"run {run.run_id} asks questions of {run.parent_run_id} again; `evalhouse resume {run.parent_run_id}` "
            "goes on with both"
        )
    if run.kind == "replay":
        raise WarehouseError(
            f"run {run.run_id} is of kind replay; what was answered is on record, and its command goes on from there: "
            f"evalhouse replay {find_replayed_base(run)} {run.parent_run_id}"
        )
    if run.kind in ("prefer", "testset"):
        raise WarehouseError(f"run {run.run_id} is of kind {run.kind}; `evalhouse resume {run.run_id}` goes on with it")
    if run.kind in ("prompts", "benchmark"):
        raise WarehouseError(
            f"run {run.run_id} is of kind {run.kind}; give its command again: what was answered is on record"
        )
    refuse_forgotten(Warehouse(warehouse_url), run, "start a new run: there is nothing left to go on with")
    return Unfinished(run=run, settings=read_settings({**run.config, **changes, "warehouse": warehouse_url}))


@contextmanager
def open_process(
    settings: RunSettings,
    watch: Watch | None,
    wait_s: float,
    *,
    run_id: str | None = None,
    finish: Finish | None = None,
    find_flow: FlowFinder,
    is_flow: bool = False,
    is_served: bool = False,
) -> Iterator["RunProcess"]:
    """All that a run holds from before its preparation to its end: signals, locks, server, warehouse.

    `is_flow` says that this is within a flow already, which has a server; `is_served` that it is within that of a
    served suite, so that a run which is broken off is taken up again.
    """
    if settings.pool is not None:
        from evalhouse.flows.pools.parts import check_pool  # noqa: PLC0415  # few runs are

        check_pool(settings)
    with (
        warnings_shown(),
        Interrupts() as interrupts,
        _hold_suite(settings, wait_s),
        hold_run(Warehouse(settings.warehouse).location, run_id) if run_id is not None else nullcontext(),
        nullcontext() if is_flow else prefect_server() as wait_for_prefect,
    ):
        warehouse = Warehouse(settings.warehouse)
        # A new one is made only when there is something to put into it; a dataset that is refused leaves none.
        if not _is_new(warehouse):
            _make_ready(warehouse)
        yield RunProcess(
            warehouse=warehouse,
            interrupts=interrupts,
            wait_for_prefect=wait_for_prefect,
            across_machines=find_api_url() is not None if is_flow else wait_for_prefect is None,
            watch=watch or (lambda _: nullcontext()),
            finish=finish or explain_incomplete,
            find_flow=find_flow,
            is_served=is_served,
        )


@contextmanager
def _hold_suite(settings: RunSettings, wait_s: float) -> Iterator[None]:
    """Keep other runs of the same suite away, where the run is of one."""
    if settings.suite is None:
        yield
        return
    with hold_suite(Warehouse(settings.warehouse), settings.suite, wait_s=wait_s):
        yield


def _is_new(warehouse: Warehouse) -> bool:
    """Whether it is a file that is not there yet."""
    return warehouse.location.lake is None and not warehouse.location.path.exists()


def _make_ready(warehouse: Warehouse) -> None:
    had_journal = warehouse.location.journal_path.exists()
    warehouse.make_ready()
    if had_journal:
        take_in_orphans(warehouse)


@dataclass(frozen=True, kw_only=True)
class RunProcess:
    """What this process has while a run is under way in it.

    `wait_for_prefect` waits for our own server where that is still coming up; `across_machines` says that the server is
    the user's, by which limits are shared with other machines."""

    warehouse: Warehouse
    interrupts: Interrupts
    wait_for_prefect: Callable[[], None] | None
    across_machines: bool
    watch: Watch
    finish: Finish
    find_flow: FlowFinder
    is_served: bool = False

    async def run(self, prepared: "PreparedRun", put_on_record: Callable[[], None]) -> RunOutcome:
        """Run what was prepared to its end, and measure the judge's noise and the bot's where settings ask for it."""
        live_run = prepared.make_live_run(self.warehouse)
        # Putting it on record is not broken off: a person who interrupts a run on record is given its id.
        with self.interrupts.noted():
            try:
                prepared.add_collection(live_run)
                put_on_record()
            except BaseException:  # whatever stops it, Ctrl-C too: nothing is left open
                _close_records(live_run)
                _put_away(live_run)
                raise
            self.interrupts.note_on_record(live_run.run_id)
        outcome = await self.carry_out(live_run, prepared.run)
        if prepared.tools.settings.noise_share and self.interrupts.taken is None:
            from evalhouse.flows.run.again import measure_noise  # noqa: PLC0415

            noise = await measure_noise(outcome.run, prepared.tools.settings, self.warehouse, self.carry_out)
            outcome = replace(outcome, noise=noise)
        target = prepared.tools.settings.target if prepared.target is not None else None
        if target is not None and target.repeats and self.interrupts.taken is None:
            from evalhouse.flows.run.again import ask_again  # noqa: PLC0415

            repeats = await ask_again(outcome.run, prepared.tools.settings, self.warehouse, self.carry_out)
            outcome = replace(outcome, repeats=repeats)
        if (shortcoming := self.finish(outcome)) is not None:
            show_end(outcome.run, shortcoming)
        self._write_pages(outcome.run, prepared.tools.settings)
        return outcome

    def _write_pages(self, run: RunRow, settings: RunSettings) -> None:
        """The report, where one is wanted, and what a server of the user's shows of the end."""
        if settings.reports is None and not self.across_machines:
            return
        from evalhouse.flows.run.prefect_pages import publish_end, write_report  # noqa: PLC0415  # most runs do without

        report = write_report(self.warehouse, run, settings)
        if self.across_machines:
            publish_end(self.warehouse, run, settings, report)

    async def carry_out(self, live_run: "LiveRun", run: RunRow) -> RunOutcome:
        """Run the flow to its end and put on record how it ended."""
        is_short = run.n_samples is not None and run.n_samples <= _SHORT
        with writer_kept(self.warehouse.location) if is_short else nullcontext():
            return await self._carry_out(live_run, run)

    async def _carry_out(self, live_run: "LiveRun", run: RunRow) -> RunOutcome:
        try:
            self.interrupts.raise_if_taken()
            call_flow = self.find_flow()
            from evalhouse.tasks.pipeline.run_step import registered  # noqa: PLC0415  # imports Prefect too

            if self.wait_for_prefect is not None:
                self.wait_for_prefect()
            with registered(live_run):
                problem = await self._run_flow(live_run, run.kind, call_flow)
        except KeyboardInterrupt:
            problem = RunCancelled(f"stopped by {self.interrupts.taken}")
        except BaseException as error:  # whatever ends the run, the journal is emptied and the end is on record
            self._conclude(live_run, run, error)
            raise
        return self._conclude(live_run, run, problem)

    def _conclude(self, live_run: "LiveRun", run: RunRow, problem: BaseException | None) -> RunOutcome:
        """Empty the journal and write how the run ended; when that cannot be written it is only reported.

        A served run that an outage has broken off is left without an end: to `evalhouse serve` it has crashed, as if
        its process had been killed, and is resumed."""
        self.interrupts.note_only()
        is_taken_up = (self.is_served or run.trigger != "manual") and is_outage(problem)
        try:
            _close_records(live_run)
            run = _write_end(live_run, run, problem, is_taken_up=is_taken_up)
        except WarehouseError as error:
            # Replies are in the journal and the verdicts follow from them: there is a run to resume.
            problem = problem or error
            run = replace(run, status=_name_end(live_run, problem))
        finally:
            _put_away(live_run)
        return RunOutcome(run=run, status=run.status, counts=live_run.usage, problem=_describe_end(live_run, problem))

    async def _run_flow(self, live_run: "LiveRun", kind: RunKind, call_flow: FlowCall) -> Exception | None:
        """The flow, with the terminal's signals turned into an orderly stop; returns what it ended with."""
        from prefect.exceptions import TerminationSignal  # noqa: PLC0415

        if live_run.settings.pool is not None:
            from evalhouse.flows.part import judge_part  # noqa: PLC0415
            from evalhouse.flows.pools.coordinate import judge_elsewhere  # noqa: PLC0415

            live_run.judge_elsewhere = partial(judge_elsewhere, live_run, judge_part)
        live_run.watch, live_run.across_machines = self.watch, self.across_machines
        loop = asyncio.get_running_loop()

        def stop(name: str) -> None:
            loop.call_soon_threadsafe(partial(live_run.stop, RunCancelled(f"stopped by {name}"), drain_s=_DRAIN_S))

        try:
            with self.interrupts.answered_by(stop):
                # A task, so that what wakes the flow does not come through here each time.
                await asyncio.create_task(call_flow(live_run, kind))
        except (JudgeError, WarehouseError) as error:
            if isinstance(error, WarehouseBusy) and self.interrupts.taken is not None:  # while it was waited for
                return RunCancelled(f"stopped by {self.interrupts.taken}; {error}")
            return error
        except TimeoutError as error:
            if (ended := explain_timeout(live_run.settings, error)) is None:
                raise
            return ended
        except TerminationSignal:  # Prefect's, in the moment before the flow has taken the signals back
            return RunCancelled("stopped by SIGTERM")
        finally:
            self.interrupts.note_only()
            await live_run.close()
        return None


def explain_incomplete(outcome: RunOutcome) -> str | None:
    """Why a run that has come to its end is no success all the same; None where it is."""
    run = outcome.run
    if run.status != "incomplete":
        return None
    return f"run {run.run_id} incomplete: of {run.n_samples} samples some failed; next: evalhouse resume {run.run_id}"


def explain_timeout(settings: RunSettings, error: TimeoutError) -> FatalJudgeError | None:
    """What to say of a flow run or a task run that took too long; None where neither has a limit."""
    from prefect.task_engine import TaskRunTimeoutError  # noqa: PLC0415  # there by now

    if isinstance(error, TaskRunTimeoutError):
        what, name, limit_s = "one step of a shard", "task_timeout_s", settings.task_timeout_s
    else:
        what, name, limit_s = "the run", "run_timeout_s", settings.run_timeout_s
    if limit_s is None:
        return None
    return FatalJudgeError(
        f"{what} took longer than {limit_s:g} seconds ({name}) and was ended; what was answered is on record"
    )


def _close_records(live_run: "LiveRun") -> None:
    """Bring calls and responses into the warehouse; what cannot be moved now is on disk."""
    try:
        if live_run.is_open:
            live_run.asker.record.close()
    finally:
        if live_run.collection is not None:
            live_run.collection.record.close()


def _write_end(live_run: "LiveRun", run: RunRow, problem: BaseException | None, *, is_taken_up: bool) -> RunRow:
    """Write the run's status, but for one that is taken up, and return its row; an evaluation that was stopped is
    scored as far as it came."""
    if run.kind == "collection":
        live_run.progress.n_failed = count_responses(live_run.warehouse, live_run.run_id)["n_failed"]
    elif problem is not None and count_samples(live_run.warehouse, live_run.run_id):
        from evalhouse.tasks.score import score_verdicts  # noqa: PLC0415

        score_verdicts(live_run)
    told = _describe_end(live_run, problem)
    ended = replace(run, flow_run_id=live_run.flow_run_id or run.flow_run_id, problem=told)
    if is_taken_up:
        update_run(live_run.warehouse, live_run.run_id, problem=told)
        return ended
    ended = replace(ended, status=_name_end(live_run, problem), finished_at=now_utc())
    end_run(live_run.warehouse, live_run.run_id, status=ended.status, finished_at=ended.finished_at, problem=told)
    return ended


def _name_end(live_run: "LiveRun", problem: BaseException | None) -> RunStatus:
    if problem is None:
        return "incomplete" if live_run.progress.n_failed else "completed"
    return "cancelled" if isinstance(problem, RunCancelled) else "failed"


def _describe_end(live_run: "LiveRun", problem: BaseException | None) -> str | None:
    if problem is None:
        return None
    from evalhouse.tasks.asking.record import CallRecord  # noqa: PLC0415

    record = live_run.asker.record if live_run.is_open else None
    n_lost = record.n_lost if isinstance(record, CallRecord) else 0
    lost = f"; {n_lost} replies came that could not be kept, and will be asked for again" if n_lost else ""
    text = describe_outage(problem) if is_outage(problem) and not isinstance(problem, WarehouseError) else str(problem)
    return f"{text}{lost}"


def _put_away(live_run: "LiveRun") -> None:
    if live_run.staged is not None:
        live_run.staged.staging.discard()
