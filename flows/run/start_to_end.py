"""Running an evaluation from start to end in this process: server, dataset, live run, flow, and what came of it.

The order is for the person who waits. Our Prefect server needs some seconds to come up, so it is started first, and
everything that can be refused (settings, dataset, warehouse) is checked meanwhile; Prefect itself is imported only
after its settings are known, which is why the flow is imported inside a function.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from evalhouse.flows.display.output import print_notice
from evalhouse.flows.preparing.request import BY_HAND, RunRequest, Trigger, leave_out_judging
from evalhouse.flows.run.outcome import Finish, RunOutcome, Watch, explain_incomplete, show_end
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.server.local import prefect_server
from evalhouse.flows.server.outages import describe_outage, is_outage
from evalhouse.tasks.judge.errors import JudgeError, RunCancelled
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.calls import count_responses
from evalhouse.warehouse.rows.forgotten import refuse_forgotten
from evalhouse.warehouse.rows.runs import (
    RunKind,
    RunRow,
    RunStatus,
    end_run,
    find_run,
    hold_suite,
    insert_run,
    now_utc,
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


def start_run(
    settings: RunSettings,
    *,
    source: "str | pl.DataFrame | None" = None,
    trigger: Trigger = BY_HAND,
    watch: Watch | None = None,
    finish: Finish | None = None,
    wait_s: float = 0.0,
) -> RunOutcome:
    """Evaluate a dataset, or the samples of a `source`, for which `settings.dataset` is then just a name.

    `trigger` says why and goes on record; `watch` gives a context manager that is open while samples are judged;
    `finish` is called when the run has ended, and what it returns is why it is red in Prefect; `wait_s` is how long
    to wait for the end of another run of the same suite.

    Raises the errors of dataset, settings, warehouse, target and judge for whatever can be refused beforehand.
    """
    request = RunRequest(settings=settings, kind="evaluation", trigger=trigger)
    return _start(request, settings.dataset if source is None else source, watch, wait_s, finish)


def start_collection(
    settings: RunSettings, *, trigger: Trigger = BY_HAND, watch: Watch | None = None, wait_s: float = 0.0
) -> RunOutcome:
    """Ask the target about every sample and judge nothing; otherwise as `start_run`."""
    request = RunRequest(settings=leave_out_judging(settings), kind="collection", trigger=trigger)
    return _start(request, settings.dataset, watch, wait_s)


def _start(
    request: RunRequest,
    source: "str | pl.DataFrame",
    watch: Watch | None,
    wait_s: float,
    finish: Finish | None = None,
) -> RunOutcome:
    with _opened(request.settings, watch, wait_s, finish=finish) as process:
        # Imported after the server was started: this takes a second in which it comes up.
        from evalhouse.flows.preparing.live_run import prepare_run  # noqa: PLC0415

        prepared = prepare_run(request, source, process.warehouse)
        if _is_new(process.warehouse):
            _make_ready(process.warehouse)
        with hold_run(process.warehouse.location, prepared.run.run_id):
            return process.run(prepared, partial(insert_run, process.warehouse, prepared.run))


def resume_run(
    wanted: str,
    *,
    warehouse_url: str,
    changes: Mapping[str, object],
    watch: Watch | None = None,
    finish: Finish | None = None,
    wait_s: float = 0.0,
) -> RunOutcome:
    """Go on with a run where it stopped, with its own settings but for `changes`; otherwise as `start_run`."""
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
    if run.kind == "testset":
        raise WarehouseError(
            f"run {run.run_id} is of kind testset; what was answered is on record, and its command goes on from there: "
            f"{run.config['testset']['command']}"
        )
    if run.kind in ("prompts", "benchmark"):
        raise WarehouseError(
            f"run {run.run_id} is of kind {run.kind}; give its command again: what was answered is on record"
        )
    refuse_forgotten(Warehouse(warehouse_url), run, "start a new run: there is nothing left to go on with")
    settings = RunSettings.model_validate_json(
        json.dumps({**run.config, **changes, "warehouse": warehouse_url}, ensure_ascii=False)
    )
    with _opened(settings, watch, wait_s, run_id=run.run_id, finish=finish) as process:
        from evalhouse.flows.preparing.live_run import prepare_again  # noqa: PLC0415

        run = replace(run, status="running", finished_at=None, problem=None)
        prepared = prepare_again(run, settings, process.warehouse)
        begin = partial(update_run, process.warehouse, run.run_id, status="running", finished_at=None, problem=None)
        return process.run(prepared, begin)


@contextmanager
def _opened(
    settings: RunSettings,
    watch: Watch | None,
    wait_s: float,
    *,
    run_id: str | None = None,
    finish: Finish | None = None,
) -> Iterator["_RunProcess"]:
    """All that a run holds from before its preparation to its end: signals, locks, server, warehouse."""
    if settings.is_spread:
        from evalhouse.flows.pools.parts import check_pool  # noqa: PLC0415  # few runs are

        check_pool(settings)
    with (
        warnings_shown(),
        Interrupts() as interrupts,
        _hold_suite(settings, wait_s),
        hold_run(Warehouse(settings.warehouse).location, run_id) if run_id is not None else nullcontext(),
        prefect_server() as wait_for_prefect,
    ):
        warehouse = Warehouse(settings.warehouse)
        # A new one is made only when there is something to put into it; a dataset that is refused leaves none.
        if not _is_new(warehouse):
            _make_ready(warehouse)
        yield _RunProcess(
            warehouse=warehouse,
            interrupts=interrupts,
            wait_for_prefect=wait_for_prefect,
            watch=watch or (lambda _: nullcontext()),
            finish=finish or explain_incomplete,
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
class _RunProcess:
    """What this process has while a run is under way in it; `wait_for_prefect` None means the user's own server, by
    which limits are shared with other machines."""

    warehouse: Warehouse
    interrupts: Interrupts
    wait_for_prefect: Callable[[], None] | None
    watch: Watch
    finish: Finish

    def run(self, prepared: "PreparedRun", put_on_record: Callable[[], None]) -> RunOutcome:
        """Run what was prepared to its end, and measure the judge's noise and the bot's where settings ask for it."""
        live_run = prepared.make_live_run(self.warehouse)
        # Putting it on record is not broken off: a person who interrupts a run on record is given its id.
        with self.interrupts.noted():
            try:
                prepared.add_collection(live_run)
                put_on_record()
            except BaseException:
                _close_records(live_run)
                _put_away(live_run)
                raise
            self.interrupts.note_on_record(live_run.run_id)
        outcome = self.carry_out(live_run, prepared.run)
        if prepared.tools.settings.noise_share and self.interrupts.taken is None:
            from evalhouse.flows.run.noise import measure_noise  # noqa: PLC0415

            noise = measure_noise(outcome.run, prepared.tools.settings, self.warehouse, self.carry_out)
            outcome = replace(outcome, noise=noise)
        target = prepared.tools.settings.target if prepared.target is not None else None
        if target is not None and target.repeats and self.interrupts.taken is None:
            from evalhouse.flows.run.repeats import ask_again  # noqa: PLC0415

            repeats = ask_again(outcome.run, prepared.tools.settings, self.warehouse, self.carry_out)
            outcome = replace(outcome, repeats=repeats)
        show_end(outcome.run, self.finish(outcome))
        return outcome

    def carry_out(self, live_run: "LiveRun", run: RunRow) -> RunOutcome:
        """Run the flow to its end and put on record how it ended."""
        from evalhouse.tasks.pipeline.live_run import register_live_run  # noqa: PLC0415

        try:
            self.interrupts.raise_if_taken()
            import evalhouse.flows.evaluation  # noqa: F401, PLC0415  # Prefect, imported while its server comes up

            if self.wait_for_prefect is not None:
                self.wait_for_prefect()
            register_live_run(live_run)
            problem = asyncio.run(self._run_flow(live_run, run.kind))
        except KeyboardInterrupt:
            problem = RunCancelled(f"stopped by {self.interrupts.taken}")
        except BaseException as error:  # whatever ends the run, the journal is emptied and the end is on record
            _conclude(live_run, run, error, self.interrupts)
            raise
        return _conclude(live_run, run, problem, self.interrupts)

    async def _run_flow(self, live_run: "LiveRun", kind: RunKind) -> Exception | None:
        """The flow, with the terminal's signals turned into an orderly stop; returns what it ended with."""
        from prefect.exceptions import TerminationSignal  # noqa: PLC0415

        from evalhouse.flows.evaluation import collect_run, evaluate_run  # noqa: PLC0415

        if live_run.settings.is_spread:
            from evalhouse.flows.part import judge_part  # noqa: PLC0415
            from evalhouse.flows.pools.coordinate import judge_elsewhere  # noqa: PLC0415

            live_run.judge_elsewhere = partial(judge_elsewhere, live_run, judge_part)
        live_run.watch, live_run.across_machines = self.watch, self.wait_for_prefect is None
        loop = asyncio.get_running_loop()

        def stop(name: str) -> None:
            loop.call_soon_threadsafe(partial(live_run.stop, RunCancelled(f"stopped by {name}"), drain_s=_DRAIN_S))

        try:
            with self.interrupts.answered_by(stop):
                flow = collect_run if kind == "collection" else evaluate_run
                named = flow.with_options(flow_run_name=_name_flow_run(live_run))
                # A task, so that what wakes the flow does not come through here each time.
                await asyncio.create_task(named(live_run.run_id))
        except (JudgeError, WarehouseError) as error:
            if isinstance(error, WarehouseBusy) and self.interrupts.taken is not None:  # while it was waited for
                return RunCancelled(f"stopped by {self.interrupts.taken}; {error}")
            return error
        except TerminationSignal:  # Prefect's, in the moment before the flow has taken the signals back
            return RunCancelled("stopped by SIGTERM")
        finally:
            self.interrupts.note_only()
            await live_run.close()
        return None


def _name_flow_run(live_run: "LiveRun") -> str:
    """A template, as Prefect takes it, of the suite's name and the run's id."""
    suite = live_run.settings.suite
    return f"{suite} {{run_id}}" if suite else "{run_id}"


def _conclude(live_run: "LiveRun", run: RunRow, problem: BaseException | None, interrupts: Interrupts) -> RunOutcome:
    """Empty the journal and write how the run ended; when that cannot be written it is only reported."""
    interrupts.note_only()
    try:
        _close_records(live_run)
        run = _write_end(live_run, run, problem)
    except WarehouseError as error:
        # Replies are in the journal and the verdicts follow from them: there is a run to resume.
        problem = problem or error
        run = replace(run, status=_name_end(live_run, problem))
    finally:
        _put_away(live_run)
    return RunOutcome(run=run, status=run.status, counts=live_run.usage, problem=_describe_end(live_run, problem))


def _close_records(live_run: "LiveRun") -> None:
    """Bring calls and responses into the warehouse; what cannot be moved now is on disk."""
    try:
        if live_run.is_open:
            live_run.asker.record.close()
    finally:
        if live_run.collection is not None:
            live_run.collection.record.close()


def _write_end(live_run: "LiveRun", run: RunRow, problem: BaseException | None) -> RunRow:
    """Write the run's status and return its row; an evaluation that was stopped is scored as far as it came."""
    if run.kind == "collection":
        live_run.progress.n_failed = count_responses(live_run.warehouse, live_run.run_id)["n_failed"]
    elif problem is not None and count_samples(live_run.warehouse, live_run.run_id):
        from evalhouse.tasks.score import score_verdicts  # noqa: PLC0415

        score_verdicts(live_run)
    told = _describe_end(live_run, problem)
    ended = replace(run, flow_run_id=live_run.flow_run_id or run.flow_run_id, problem=told)
    if _is_taken_up(run, problem):
        update_run(live_run.warehouse, live_run.run_id, problem=told)
        return ended
    ended = replace(ended, status=_name_end(live_run, problem), finished_at=now_utc())
    end_run(live_run.warehouse, live_run.run_id, status=ended.status, finished_at=ended.finished_at, problem=told)
    return ended


def _is_taken_up(run: RunRow, problem: BaseException | None) -> bool:
    """Whether it was broken off by an outage and is left as it is, without an end: to `evalhouse serve` it has crashed,
    as if its process had been killed, and is resumed."""
    return run.trigger != "manual" and is_outage(problem)


def _name_end(live_run: "LiveRun", problem: BaseException | None) -> RunStatus:
    if problem is None:
        return "incomplete" if live_run.progress.n_failed else "completed"
    return "cancelled" if isinstance(problem, RunCancelled) else "failed"


def _describe_end(live_run: "LiveRun", problem: BaseException | None) -> str | None:
    from evalhouse.tasks.asking.record import CallRecord  # noqa: PLC0415

    record = live_run.asker.record if live_run.is_open else None
    n_lost = record.n_lost if isinstance(record, CallRecord) else 0
    lost = f"; {n_lost} replies came that could not be kept, and will be asked for again" if n_lost else ""
    if problem is None:
        return None
    text = describe_outage(problem) if is_outage(problem) and not isinstance(problem, WarehouseError) else str(problem)
    return f"{text}{lost}"


def _put_away(live_run: "LiveRun") -> None:
    from evalhouse.tasks.pipeline.live_run import forget_live_run  # noqa: PLC0415

    forget_live_run(live_run.run_id)
    if live_run.staged is not None:
        live_run.staged.staging.discard()
