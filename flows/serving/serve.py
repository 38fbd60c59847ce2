"""Serving suites: they are registered with a Prefect server, and this process starts their runs until it is stopped.

The server is the one that is configured, or one of ours that lasts as long as this process. Each run is a separate
process that Prefect's runner starts. The order to stop lets the runs under way stop in good order and queues their
resumption; `backlog` finds what an end in bad order has left and what updates no run has answered.
"""

import asyncio
import contextlib
import hashlib
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evalhouse.flows.errors import BAD_INPUT, SettingsError
from evalhouse.flows.preparing.suites import Suite, list_fires, load_suite
from evalhouse.flows.server.api import (
    KEYLESS,
    PrefectApi,
    PrefectApiError,
    check_prefect_server,
    find_api,
    is_keyless,
)
from evalhouse.flows.server.environment import (
    API_URL,
    LocalServerError,
    configure_prefect_environment,
    find_api_url,
    prefect_home,
)
from evalhouse.flows.server.interrupts import StopOrders
from evalhouse.flows.server.local import SERVE_LOG, LocalServer
from evalhouse.flows.serving.backlog import catch_up, is_served, queue_resume, sweep_crashed
from evalhouse.flows.serving.flow_runs import HistoryLimit, ServedSuite, read_served_suite
from evalhouse.flows.serving.suite_runs import resolve_suite
from evalhouse.tasks.settings.suite import Retention
from evalhouse.warehouse.engine.locks import hold_file
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.messages import hide_credentials
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.runner import Runner
import shutil
from datetime import timedelta

from evalhouse.flows.results.output import write_count
from evalhouse.flows.serving.backlog import is_marked
from evalhouse.flows.serving.notify import describe_failures, describe_trigger
from evalhouse.warehouse.errors import WarehouseMissing
from evalhouse.warehouse.rows.runs import list_runs, now_utc

Print = Callable[[str], None]
# Newest runs of a warehouse that are looked at: more do not start between two looks.
_NEWEST = 50
# A gate decides in the seconds after its run has ended. One that does not (its process was killed) is not waited for.
_GATE_TIME: Final = timedelta(minutes=2)
_MOST_BYTES = 5 * 2**20
_MOST_OLD = 3


class ServeLog:
    """Says lines at the terminal, with their time, and puts them with their date at the end of a file."""

    def __init__(self, path: Path, say: Print) -> None:
        self._path, self._say = path, say
        self.rotate()

    def __call__(self, line: str) -> None:
        now = datetime.now()
        self._say(f"{now:%H:%M:%S} {line}")
        # A full disk must not end the serving.
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as log:
            log.write(f"{now:%Y-%m-%d %H:%M:%S} serve: {line}\n")

    def rotate(self) -> None:
        """Put a file that has grown large aside, as `NAME.1`; what was there becomes `NAME.2`, and so on."""
        with contextlib.suppress(OSError):
            if not self._path.exists() or self._path.stat().st_size <= _MOST_BYTES:
                return
            for number in range(_MOST_OLD - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._name_old(number).rename(self._name_old(number + 1))
            # Copied and emptied, because the server goes on writing into the one it has open.
            shutil.copyfile(self._path, self._name_old(1))
            with self._path.open("r+b") as log:
                log.truncate()

    def _name_old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A run and the warehouse that has it."""

    run: RunRow
    warehouse: Warehouse


class RunLines:
    """Looks at the warehouses of some suites; `read_news` gives what has changed since the look before."""

    def __init__(self, suites: Sequence[ServedSuite]) -> None:
        self._names = {suite.name for suite in suites}
        self._urls = sorted({suite.warehouse_url for suite in suites})
        self._seen: dict[str, RunRow] | None = None

    def list_under_way(self) -> list[RunRow]:
        """The runs that were under way at the last look."""
        return [run for run in (self._seen or {}).values() if run.status == "running"]

    def read_news(self) -> list[str]:
        """A line for each run that has started, ended or gone on, oldest first; at the first look, how the last run of
        each suite has ended."""
        all_kept = sorted(self._list_runs(), key=lambda kept: (kept.run.started_at, kept.run.run_id))
        if self._seen is None:
            self._seen = {kept.run.run_id: kept.run for kept in all_kept}
            last = {kept.run.suite: kept for kept in all_kept}
            return [_describe_last(kept) for kept in last.values() if not is_marked(kept.run)]
        lines = []
        for kept in all_kept:
            if not _is_before_its_gate(kept.run):  # its end is said together with what its gate says
                lines += _describe_change(self._seen.get(kept.run.run_id), kept)
                self._seen[kept.run.run_id] = kept.run
        return lines

    def _list_runs(self) -> list[_Kept]:
        all_kept = []
        for warehouse in map(Warehouse, self._urls):
            with contextlib.suppress(WarehouseMissing):
                all_kept += [_Kept(run=run, warehouse=warehouse) for run in list_runs(warehouse, limit=_NEWEST)]
        return [kept for kept in all_kept if kept.run.suite in self._names and not kept.run.is_part_of_run]


def _is_before_its_gate(run: RunRow) -> bool:
    has_gate = run.kind == "evaluation" and run.config.get("gate") is not None and run.gate is None
    if not has_gate or run.status not in ("completed", "incomplete") or run.finished_at is None:
        return False
    return now_utc() - run.finished_at < _GATE_TIME


def _describe_last(kept: _Kept) -> str:
    run = kept.run
    if run.status == "running":
        return f"{run.suite}: run {run.run_id}, begun before this start, is still under way"
    return f"{run.suite}: the last was run {_describe_end(kept)}"


def _describe_change(before: RunRow | None, kept: _Kept) -> list[str]:
    run, lines = kept.run, []
    if is_marked(run):  # which whoever has found it crashed has said
        return []
    if before is None or (before.status != "running" and run.status == "running"):
        lines.append(f"{run.suite}: run {run.run_id} {'goes on' if before else _describe_start(run)}")
    # By its time too, for one that is resumed may go on and end between two looks.
    is_news = before is None or (before.status, before.finished_at) != (run.status, run.finished_at)
    if run.status != "running" and is_news:
        lines.append(f"{run.suite}: run {_describe_end(kept)}")
    return lines


def _describe_start(run: RunRow) -> str:
    return "was started by hand" if run.trigger == "manual" else f"has started {describe_trigger(run)}"


def _describe_end(kept: _Kept) -> str:
    run = kept.run
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else 0.0
    problem = f": {' '.join(run.problem.split())}" if run.problem else ""
    command = f"evalhouse {'show' if run.status == 'completed' else 'resume'} {run.run_id}"
    end = f"{run.run_id} {run.status} after {seconds:.0f} s, {write_count(run.n_samples or 0, 'sample')}{problem}"
    if run.gate is not None:
        end += f", gate {run.gate}"
    if run.gate == "failed":
        end += f": {describe_failures(kept.warehouse.fetch_rows('gate/failures', run_id=run.run_id))}"
    return end if command in end else f"{end}; {command}"


_POLL_S: Final = 2.0
# Looks between two searches for what was lost: one takes a second for each run that is under way.
_SWEEP_EVERY: Final = 10
LoadFlow = Callable[[], "Flow[..., Any]"]
# A warehouse or a server that is away is spoken of once in so long.
_TROUBLE_AGAIN_S: Final = 600.0
# How long the server that was brought along may be away before that is spoken of: it is started again.
_OWN_SERVER_S: Final = 60.0
# One that ends as soon as it has started is given up.
_QUICK_END_S: Final = 30.0
_MOST_QUICK_ENDS = 3
# How long the end may take once nothing can be served any more.
_LAST_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class ServerUse:
    """The server that suites are served by; `own` is the one we brought along."""

    api_url: str
    own: LocalServer | None


@contextlib.contextmanager
def use_server(*, with_server: bool, port: int | None) -> Iterator[ServerUse]:
    """The server for this block; one of ours ends with it. Raises SettingsError, LocalServerError."""
    chosen = find_api_url()
    if chosen is not None:
        if with_server:
            raise SettingsError(
                f"{API_URL} names a server already; leave out --with-server to serve by that one, or take {API_URL} "
                "away (it may stand in Prefect's profile) to have one started"
            )
        check_prefect_server()
        configure_prefect_environment(None)
        yield ServerUse(api_url=chosen, own=None)
        return
    if not with_server:
        raise SettingsError(
            "no Prefect server is configured; have one started by `evalhouse serve … --with-server`, or set "
            f"{API_URL} to the address of one that runs, such as http://127.0.0.1:4200/api"
        )
    busy = (
        f"another `evalhouse serve --with-server` runs a server over {prefect_home()} already, and two over one "
        f"database would each see half of the events; set {API_URL} to the address it has printed, or PREFECT_HOME to "
        "another folder"
    )
    with hold_alone(prefect_home() / "evalhouse-serve.lock", busy):
        server = LocalServer.start_lasting(port)
        try:
            configure_prefect_environment(server.api_url, auth_string=server.auth_string, is_lasting=True)
            yield ServerUse(api_url=server.api_url, own=server)
        finally:
            server.stop()


@contextlib.contextmanager
def hold_alone(path: Path, busy: str) -> Iterator[None]:
    """A lock for this block; raises SettingsError, with the message `busy`, when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_file(path, patience_s=0, busy=busy))
        except WarehouseBusy as error:
            raise SettingsError(str(error)) from None
        yield


def load_suites(paths: Sequence[str]) -> list[Suite]:
    """The suites of some files; raises SettingsError for what cannot be served."""
    suites = [load_suite(path) for path in paths]
    for suite in suites:
        if suite.schedule is None and suite.trigger is None:
            raise SettingsError(
                f"{suite.path}: a suite that is served needs a [schedule], a [trigger] or both; without, it runs by "
                f"`evalhouse run {suite.path.name}`"
            )
        resolve_suite(suite, flags={})
        others = [other.path for other in suites if other.name == suite.name]
        if len(others) > 1:
            raise SettingsError(
                f"{' and '.join(map(str, others))} are both named {suite.name!r}; give each a `name` of its own"
            )
    return suites


def serve_suites(
    suites: Sequence[Suite],
    server: ServerUse,
    orders: StopOrders,
    load_flow: LoadFlow,
    *,
    parallel: int,
    report: Print,
) -> None:
    """Serve until the order to stop; `report` takes a line for the person at the terminal.

    `load_flow` imports the flow that suites are run by, which takes a second in which our server comes up.
    """
    with contextlib.ExitStack() as locks:
        for suite in suites:
            digest = hashlib.sha256(f"{server.api_url} {suite.name}".encode()).hexdigest()[:12]
            busy = f"suite {suite.name} is served by another process of this machine already"
            locks.enter_context(hold_alone(prefect_home() / f"evalhouse-serve-{digest}.lock", busy))
        # A run's process must not look for our modules in the folder it is started in, which may have a `flows`.
        os.environ["PYTHONSAFEPATH"] = "1"
        asyncio.run(_Serving(suites, server, load_flow, parallel=parallel, report=report).serve(orders))


class _Serving:
    """One `evalhouse serve` between its registration and its end."""

    def __init__(
        self, suites: Sequence[Suite], server: ServerUse, load_flow: LoadFlow, *, parallel: int, report: Print
    ) -> None:
        self._suites = suites
        self._server = server
        self._load_flow = load_flow
        self._parallel = parallel
        self._report = report
        self._log = ServeLog(prefect_home() / SERVE_LOG, report)
        self._served: list[ServedSuite] = []
        self._has_taken_up = False
        self._history: HistoryLimit | None = None
        self._troubles: dict[str, float] = {}

    async def serve(self, orders: StopOrders) -> None:
        stopping = asyncio.create_task(orders.wait())
        starting = asyncio.create_task(self._register())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        runner = starting.result()
        lines = RunLines(self._served)
        for line in introduce_serving(self._suites, self._server, parallel=self._parallel):
            self._report(line)
        await asyncio.to_thread(self._look_once, lines, sweep=False)
        running = asyncio.create_task(runner.start())
        looking = asyncio.create_task(self._look(lines))
        keeping = asyncio.create_task(self._keep_server())
        while not (runner.started or running.done()):
            await asyncio.sleep(0.05)
        orders.take_back()
        await asyncio.wait({running, looking, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            _end_within(_LAST_S)
            self._raise_first(keeping, looking)
            await self._explain_end(running)
        keeping.cancel()
        looking.cancel()
        await self._stop(runner, running, lines)

    async def _register(self) -> "Runner":
        from prefect.runner import Runner  # noqa: PLC0415  # takes a second, in which our server comes up

        from evalhouse.flows.serving.flow_runs import HEARTBEAT_S, make_deployment, watch_heartbeats  # noqa: PLC0415

        if self._server.own is not None:
            await asyncio.to_thread(self._server.own.wait_until_ready)
        patience_s = _OWN_SERVER_S if self._server.own is not None else 0.0
        self._api: PrefectApi = find_api("suites cannot be served", patience_s=patience_s)
        runner = Runner(
            name=f"evalhouse on {socket.gethostname()}",
            limit=self._parallel,
            query_seconds=_POLL_S,
            heartbeat_seconds=HEARTBEAT_S,
            # What falls due while nobody serves waits for the process that serves next.
            pause_on_shutdown=False,
        )
        flow = self._load_flow()
        for suite in self._suites:
            deployment_id = str(await runner.aadd_deployment(make_deployment(suite, flow)))
            await watch_heartbeats(suite.name, deployment_id)
            self._served.append(await asyncio.to_thread(self._describe, suite, deployment_id))
        ages = [(suite.retention or Retention()).prefect for suite in self._suites]
        self._history = HistoryLimit(self._api, list(zip(self._served, ages, strict=True)))
        return runner

    def _describe(self, suite: Suite, deployment_id: str) -> ServedSuite:
        url = Warehouse(resolve_suite(suite, flags={}).settings.warehouse).location.url
        return read_served_suite(self._api, deployment_id, suite, warehouse_url=url)

    def _take_up(self) -> list[str]:
        """What was left by those who served before: crashed runs, and updates that no run has answered."""
        lines = sweep_crashed(self._api, self._served, alone=self._server.own is not None)
        return lines + self._catch_up(trigger_is_new=True)

    def _catch_up(self, *, trigger_is_new: bool = False) -> list[str]:
        pairs = zip(self._suites, self._served, strict=True)
        found = [
            catch_up(self._api, served, suite.trigger, trigger_is_new=trigger_is_new)
            for suite, served in pairs
            if suite.trigger is not None
        ]
        return [line for line in found if line is not None]

    async def _keep_server(self) -> None:
        """Start the server that was brought along again whenever it has ended; raises LocalServerError when it cannot.

        What is asked meanwhile waits at its socket, so that runs and what starts them hardly notice.
        """
        own, n_quick = self._server.own, 0
        while True:
            since = time.monotonic()
            while own is None or own.is_alive:
                await asyncio.sleep(_POLL_S / 4)
            n_quick = n_quick + 1 if time.monotonic() - since < _QUICK_END_S else 0
            ended = f"the Prefect server has ended by itself ({own.describe_end()})"
            if n_quick >= _MOST_QUICK_ENDS:
                raise LocalServerError(f"{ended} {n_quick} times, each soon after its start; its log is {own.log_path}")
            self._log(f"{ended} and is started again; its log is {own.log_path}")
            await asyncio.to_thread(own.start_again)
            self._log("the Prefect server answers again")

    async def _look(self, lines: RunLines) -> None:
        """Report runs that start and end, and find those that have crashed."""
        n_looks = 0
        while True:
            await asyncio.sleep(_POLL_S)
            n_looks += 1
            await asyncio.to_thread(self._look_once, lines, sweep=n_looks % _SWEEP_EVERY == 0)

    def _look_once(self, lines: RunLines, *, sweep: bool) -> None:
        self._log.rotate()
        news: list[str] = []
        try:
            if not self._has_taken_up:
                news += self._take_up()
                self._has_taken_up = True
            elif sweep:
                news += sweep_crashed(self._api, self._served) + self._catch_up()
            news += lines.read_news()
        except (SettingsError, WarehouseError) as error:
            # A server or a warehouse that is away for a while.
            news += self._note_trouble(" ".join(str(error).split()))
        if sweep and self._history is not None:
            news += self._history.step()
        for line in news:
            self._log(line)

    def _note_trouble(self, trouble: str) -> list[str]:
        now = time.monotonic()
        is_new = now - self._troubles.get(trouble, -_TROUBLE_AGAIN_S) >= _TROUBLE_AGAIN_S
        if is_new:
            self._troubles[trouble] = now
        return [trouble] if is_new else []

    async def _stop(self, runner: "Runner", running: "asyncio.Task[None]", lines: RunLines) -> None:
        await asyncio.to_thread(self._look_once, lines, sweep=False)
        under_way = await asyncio.to_thread(self._list_under_way, lines)
        if under_way:
            self._log(f"stopping {', '.join(run.run_id for run in under_way)} in good order; again: at once")
        else:
            self._log("stopping; no run is under way")
        if runner.started:
            await runner.astop()
            await asyncio.wait({running})
        await asyncio.to_thread(self._look_once, lines, sweep=False)
        try:
            await asyncio.to_thread(self._queue_stopped, under_way)
        except (SettingsError, WarehouseError) as error:
            self._log(f"runs that were stopped go on when they are served again, or by `evalhouse resume`: {error}")

    def _list_under_way(self, lines: RunLines) -> list[RunRow]:
        """The runs that the deployments of these suites have started."""
        served, runs = {suite.name: suite for suite in self._served}, lines.list_under_way()
        try:
            return [run for run in runs if run.suite is not None and is_served(self._api, served[run.suite], run)]
        except PrefectApiError:  # nor can anything be queued there
            return [run for run in runs if run.kind == "evaluation" and run.trigger != "manual"]

    def _queue_stopped(self, under_way: Sequence[RunRow]) -> None:
        """Runs that have stopped because we did go on when they are served again."""
        for run in under_way:
            served = next(suite for suite in self._served if suite.name == run.suite)
            if find_run(Warehouse(served.warehouse_url), run.run_id).status not in ("cancelled", "failed"):
                continue
            if queue_resume(self._api, served, run.run_id):
                self._log(f"{run.suite}: run {run.run_id} goes on when this suite is served again")

    def _raise_first(self, *tasks: "asyncio.Task[None]") -> None:
        for task in tasks:
            error = task.exception() if task.done() else None
            if error is not None:
                self._log(str(error))  # now: what is left may have to be cut short
                raise error

    async def _explain_end(self, running: "asyncio.Task[None]") -> None:
        """Raise what has ended the runner; where its server does not answer, that in a line. Runs under way are left to
        the next start: they could not say how they end."""
        try:
            await asyncio.to_thread(self._api.get, "/health")
        except SettingsError as error:
            self._log(str(error))
            raise
        await running


def _end_within(seconds: float) -> None:
    """End this process, whatever it still waits for, so that what supervises it can start it again."""
    timer = threading.Timer(seconds, os._exit, args=[BAD_INPUT])
    timer.daemon = True
    timer.start()


def introduce_serving(suites: Sequence[Suite], server: ServerUse, *, parallel: int) -> list[str]:
    """What a person reads when serving begins: where to look, when what runs, how to announce an update."""
    kept = f"; it ends with this process, its data stays in {prefect_home()}" if server.own else ""
    address = hide_credentials(server.api_url)
    # Where Prefect puts its own pages.
    lines = [f"Prefect server {address}{kept}", f"in a browser   {address.rstrip('/').removesuffix('/api')}"]
    if server.own:
        lines += [f"its key        {server.own.key_note}"]
    elif is_keyless(server.api_url):
        lines += [f"note           {KEYLESS}"]
    lines += [""]
    for suite in suites:
        lines += [f"{suite.name} ({suite.path})", *_introduce_schedule(suite), *_introduce_trigger(suite), ""]
    sources = [suite.trigger.source for suite in suites if suite.trigger]
    triggered = [source.name for source in sources if not source.is_asset]
    if triggered:
        lines += ["To announce an update, from any folder:"]
        lines += [f"  export {API_URL}={address}"]
        lines += [f"  evalhouse kb-updated {shlex.quote(name)} --version V --changed ID" for name in triggered]
        lines += [""]
    at_once = "one run at a time" if parallel == 1 else f"at most {parallel} runs at a time, of a suite one"
    return [*lines, f"Serving {len(suites)} suite{'s' if len(suites) != 1 else ''}, {at_once}. Ctrl-C ends it."]


def _introduce_schedule(suite: Suite) -> list[str]:
    if suite.schedule is None:
        return []
    cron, timezone = suite.schedule.cron, suite.schedule.timezone
    fires = [f"{at:%Y-%m-%d %H:%M}" for at in list_fires(cron, timezone, n=3, after=datetime.now(UTC))]
    return [f"  on schedule    {cron} in {timezone}: next {', '.join(fires)}"]


def _introduce_trigger(suite: Suite) -> list[str]:
    if suite.trigger is None:
        return []
    trigger = suite.trigger
    waits = f"when none has followed for {trigger.debounce_s:g} s, or after {trigger.longest_wait_s:g} s"
    what = "asset " if trigger.source.is_asset else ""
    return [f"  after updates  of {what}{trigger.source.name}, {waits}"]
