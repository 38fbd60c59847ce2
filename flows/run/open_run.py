"""Open a run: hold its signals, locks, server and warehouse, carry it out, and write how it ended.

Commands, suites and `evaluate()` open a run before its flow begins, because there is a dataset to prepare while
Prefect's server comes up; the flow of a deployment opens its run from within.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import RunRequest
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.run.outcome import STORED, Finish, RunOutcome, Watch, explain_incomplete, publish_end, show_end
from evalhouse.flows.server.environment import API_URL, find_api_url, prepare_environment
from evalhouse.flows.server.interrupts import Interrupts, answer_for_prefect
from evalhouse.flows.server.local import prefect_server
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeError, RunCancelled
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnwritable
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import RunKind, RunRow, RunStatus, hold_suite, insert_run, now_utc, update_run
from evalhouse.warehouse.rows.samples import count_samples
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

# How long requests in flight may still take after Ctrl-C.
_DRAIN_S = 3.0

RunFlow = Callable[["LiveRun", RunKind], Coroutine[Any, Any, None]]
"""Takes a live run to its end in Prefect."""
LoadFlow = Callable[[], RunFlow]
"""Imports Prefect and the flows, which must not happen before Prefect's settings are known."""


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_notice(f"warning: {record.getMessage()}")


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print our warnings as notices within this block: Prefect, once imported, mutes the terminal for all loggers."""
    logger, notices = logging.getLogger("evalhouse"), _Notices(logging.WARNING)
    logger.addHandler(notices)
    try:
        yield
    finally:
        logger.removeHandler(notices)


@contextmanager
def open_run(
    request: RunRequest,
    load_flow: LoadFlow,
    *,
    watch: Watch | None = None,
    finish: Finish = explain_incomplete,
    in_flow: bool = False,
) -> Iterator["OpenRun"]:
    """Hold what a run needs from before its preparation to its end: signals, locks, Prefect's server, the warehouse.

    `watch` gives a context manager that is open while samples are judged; `finish` is called when the run has ended,
    and returns why it is red in Prefect; `in_flow` says that this is within a flow already, which has a server.
    """
    settings = request.settings
    check_pool(settings)
    with ExitStack() as held:
        held.enter_context(show_warnings())
        prepare_environment()
        interrupts = held.enter_context(Interrupts())
        warehouse = Warehouse(settings.warehouse)
        if settings.suite is not None and not request.holds_suite:
            held.enter_context(hold_suite(warehouse, settings.suite, wait_s=request.wait_s))
        if request.holds is not None:
            held.enter_context(hold_run(warehouse.location, request.holds))
        wait_for_server = None if in_flow else held.enter_context(prefect_server())
        # A new warehouse is made only when there is a run to put into it: a dataset that is refused leaves none.
        if not _is_new(warehouse):
            _make_ready(warehouse)
        yield OpenRun(
            request=request,
            load_flow=load_flow,
            warehouse=warehouse,
            interrupts=interrupts,
            wait_for_server=wait_for_server,
            across_machines=find_api_url() is not None if in_flow else wait_for_server is None,
            watch=watch or (lambda _: nullcontext()),
            finish=finish,
            in_flow=in_flow or request.is_served,
        )


def check_pool(settings: RunSettings) -> None:
    """Refuse what cannot be spread over workers; raises SettingsError with every problem."""
    if settings.pool is None:
        return
    problems = []
    if find_api_url() is None:
        problems.append(
            f"--pool needs a Prefect server that all workers reach: set {API_URL}, such as http://host:4200/api"
        )
    if parse_location(settings.warehouse).lake is None:
        problems.append(
            f"--pool needs a warehouse that many can write to, and {settings.warehouse} is one file: give --warehouse "
            "ducklake:postgresql://user@host/db?data=s3://bucket/prefix (or a shared folder), or for workers on this "
            "machine alone ducklake:sqlite:/folder/catalog.sqlite?data=/folder/files"
        )
    if settings.budget_usd is not None:
        problems.append(
            "--budget counts what one process spends, so it does not go with --pool; see what a run will cost with "
            "--dry-run, and judge a part of it with --limit"
        )
    if problems:
        raise SettingsError("; ".join(problems))


def _is_new(warehouse: Warehouse) -> bool:
    """Return whether the warehouse is a file that does not exist yet."""
    return warehouse.location.lake is None and not warehouse.location.path.exists()


def _make_ready(warehouse: Warehouse) -> None:
    had_journal = warehouse.location.journal_path.exists()
    warehouse.make_ready()
    if had_journal:
        take_in_orphans(warehouse)


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that is held open by this process.

    `wait_for_server` waits for our own Prefect server, None for the user's; `across_machines` says that the server is
    the user's, by which limits are shared with other machines; `in_flow` that the process is that of a deployment.
    """

    request: RunRequest
    load_flow: LoadFlow
    warehouse: Warehouse
    interrupts: Interrupts
    wait_for_server: Callable[[], None] | None
    across_machines: bool
    watch: Watch
    finish: Finish
    in_flow: bool

    async def run_to_end(self) -> RunOutcome:
        """Prepare the run that was requested, and take it to its end; measure the noise of judge and bot if asked to.

        Raises the errors of dataset, settings, warehouse, target and judge for all that can be refused beforehand.
        """
        # Takes a second, in which the server comes up.
        from evalhouse.flows.preparing.live_run import make_collection, prepare_again, prepare_run  # noqa: PLC0415

        with ExitStack() as held:
            if (resumed := self.request.resumed) is not None:
                run = replace(resumed, status="running", finished_at=None, problem=None)
                prepared = prepare_again(run, self.request.settings, self.warehouse)
                put_on_record = partial(
                    update_run, self.warehouse, run.run_id, status="running", finished_at=None, problem=None
                )
            else:
                prepared = prepare_run(self.request, self.warehouse)
                if _is_new(self.warehouse):
                    _make_ready(self.warehouse)
                held.enter_context(hold_run(self.warehouse.location, prepared.run.run_id))
                put_on_record = partial(insert_run, self.warehouse, prepared.run)
            live_run = prepared.make_live_run(self.warehouse)
            # Not interrupted: a person who interrupts a run that is stored is shown its id.
            with self.interrupts.answered_by(None):
                try:
                    live_run.collection = make_collection(live_run, prepared.run, prepared.target, prepared.parent)
                    put_on_record()
                except BaseException:  # Ctrl-C too: nothing stays open
                    _close_records(live_run)
                    if live_run.staged is not None:
                        live_run.staged.staging.discard()
                    raise
                self.interrupts.run_id = live_run.run_id
            settings = live_run.settings
            outcome = await self.carry_out(live_run, prepared.run)
            if settings.noise_share and self.interrupts.taken is None:
                from evalhouse.flows.run.again import measure_noise  # noqa: PLC0415  # the statistics

                noise = await measure_noise(outcome.run, settings, self.warehouse, self.carry_out)
                outcome = replace(outcome, noise=noise)
            asks_again = prepared.target is not None and settings.target is not None and settings.target.repeats
            if asks_again and self.interrupts.taken is None:
                from evalhouse.flows.run.again import ask_again  # noqa: PLC0415

                outcome = replace(
                    outcome, repeats=await ask_again(outcome.run, settings, self.warehouse, self.carry_out)
                )
            if (shortcoming := self.finish(outcome)) is not None:
                show_end(outcome.run, shortcoming)
            if settings.reports is not None or self.across_machines:
                publish_end(self.warehouse, outcome.run, settings, in_prefect=self.across_machines)
            return outcome

    async def carry_out(self, live_run: "LiveRun", run: RunRow) -> RunOutcome:
        """Take a live run through its flow, and write how it ended; when that cannot be written it is only reported.

        A served run that an outage has interrupted keeps the status `running`: `evalhouse serve` takes it for one whose
        process was killed, and resumes it.
        """
        problem: BaseException | None = None
        try:
            problem = await self._run_flow(live_run, run.kind)
        except KeyboardInterrupt:
            problem = RunCancelled(f"stopped by {self.interrupts.taken}")
        except BaseException as error:  # on any end the journal is emptied and the end is written
            if type(error).__name__ != "Pause":
                self._write_end(live_run, run, error)
                raise
            from evalhouse.flows.shards import SUSPENDED, leave_suspended  # noqa: PLC0415  # Prefect has raised it

            await leave_suspended(live_run)
            outcome = self._write_end(live_run, run, RunCancelled(SUSPENDED))
            if self.in_flow:
                raise  # a suspended flow run of a deployment ends with its process, and keeps its state
            return outcome
        return self._write_end(live_run, run, problem)

    async def _run_flow(self, live_run: "LiveRun", kind: RunKind) -> Exception | None:
        """Run the flow, with the signals of the terminal turned into an orderly stop; return what it ended with."""
        if self.interrupts.taken is not None:  # a signal was noted while the run was stored
            raise KeyboardInterrupt(self.interrupts.taken)
        run_flow = self.load_flow()
        from prefect.task_engine import TaskRunTimeoutError  # noqa: PLC0415  # imports Prefect too

        from evalhouse.tasks.pipeline.live_run import registered  # noqa: PLC0415

        if self.wait_for_server is not None:
            self.wait_for_server()
        if live_run.settings.pool is not None:
            from evalhouse.flows.pools import judge_elsewhere  # noqa: PLC0415  # few runs use a pool

            live_run.judge_elsewhere = partial(judge_elsewhere, live_run)
        live_run.kind, live_run.watch, live_run.across_machines = kind, self.watch, self.across_machines
        answer_for_prefect()
        loop = asyncio.get_running_loop()

        def stop(name: str) -> None:
            loop.call_soon_threadsafe(partial(live_run.stop, RunCancelled(f"stopped by {name}"), drain_s=_DRAIN_S))

        try:
            with registered(live_run), self.interrupts.answered_by(stop):
                await run_flow(live_run, kind)
        except (JudgeError, WarehouseError) as error:
            if isinstance(error, WarehouseBusy) and self.interrupts.taken is not None:  # while the run waited for it
                return RunCancelled(f"stopped by {self.interrupts.taken}; {error}")
            return error
        except TimeoutError as error:
            settings = live_run.settings
            limited, name, limit_s = "the run", "run_timeout_s", settings.run_timeout_s
            if isinstance(error, TaskRunTimeoutError):
                limited, name, limit_s = "one step of a shard", "task_timeout_s", settings.task_timeout_s
            if limit_s is None:
                raise
            ended = f"{limited} took longer than {limit_s:g} seconds ({name}) and was ended"
            return FatalJudgeError(f"{ended}; {STORED}")
        finally:
            self.interrupts.note_only()
            await live_run.close()
        return None

    def _write_end(self, live_run: "LiveRun", run: RunRow, problem: BaseException | None) -> RunOutcome:
        """Empty the journal and write the run's status; a run that was stopped is scored as far as it came."""
        self.interrupts.note_only()
        is_resumed_by_serve = False
        if problem is not None and (self.request.is_served or run.trigger != "manual"):
            from evalhouse.flows.server.api import is_outage  # noqa: PLC0415  # a run without a problem does without

            is_resumed_by_serve = is_outage(problem)
        try:
            _close_records(live_run)
            if run.kind == "collection":
                live_run.progress.n_failed = live_run.warehouse.fetch_row("responses/counts", run_id=live_run.run_id)[
                    "n_failed"
                ]
            elif problem is not None and count_samples(live_run.warehouse, live_run.run_id):
                from evalhouse.tasks.score import score_verdicts  # noqa: PLC0415

                try:
                    score_verdicts(live_run)
                except (WarehouseBusy, WarehouseUnwritable):
                    raise
                except WarehouseError:
                    pass  # a metric's SQL fails: that ended the run, or will when it is resumed
            status, text = _name_end(live_run, problem), _describe_end(live_run, problem)
            run = replace(run, flow_run_id=live_run.flow_run_id or run.flow_run_id, problem=text)
            if is_resumed_by_serve:
                status = run.status
                update_run(live_run.warehouse, run.run_id, problem=text)
            else:
                run = replace(run, status=status, finished_at=now_utc())
                update_run(live_run.warehouse, run.run_id, status=status, finished_at=run.finished_at, problem=text)
        except WarehouseError as error:
            # Replies are in the journal and the verdicts follow from them: there is a run to resume.
            problem = problem or error
            status = _name_end(live_run, problem)
            run = replace(run, status=status)
        finally:
            if live_run.staged is not None:
                live_run.staged.staging.discard()
        return RunOutcome(run=run, status=status, counts=live_run.usage, problem=_describe_end(live_run, problem))


def _close_records(live_run: "LiveRun") -> None:
    """Bring calls and responses into the warehouse; what cannot be moved now is on disk."""
    try:
        if live_run.is_open:
            live_run.asker.record.close()
    finally:
        if live_run.collection is not None:
            live_run.collection.record.close()


def _name_end(live_run: "LiveRun", problem: BaseException | None) -> RunStatus:
    if problem is None:
        return "incomplete" if live_run.progress.n_failed else "completed"
    return "cancelled" if isinstance(problem, RunCancelled) else "failed"


def _describe_end(live_run: "LiveRun", problem: BaseException | None) -> str | None:
    if problem is None:
        return None
    from evalhouse.flows.server.api import describe_outage, is_outage  # noqa: PLC0415  # as above
    from evalhouse.tasks.asking.record import CallRecord  # noqa: PLC0415

    record = live_run.asker.record if live_run.is_open else None
    n_lost = record.n_lost if isinstance(record, CallRecord) else 0
    lost = f"; {n_lost} replies came that could not be kept, and will be asked for again" if n_lost else ""
    text = describe_outage(problem) if is_outage(problem) and not isinstance(problem, WarehouseError) else str(problem)
    return f"{text}{lost}"
