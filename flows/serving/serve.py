"""Serve suites: register them with a Prefect server, and start their runs in this process until it is stopped.

The server is the configured one, or one started for as long as this process runs. Each run is a separate process that
Prefect's runner starts. On the order to stop, running evaluations are stopped in good order and their resumption is
queued; `backlog` finds what crashes have left and which updates no run has answered. The lines that are printed of runs
are read from the warehouses, so that they are the same for runs by schedule, after updates and by hand; a file in
Prefect's folder keeps them.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evalhouse.flows.errors import BAD_INPUT, SettingsError
from evalhouse.flows.preparing.request import BY_HAND, resolve_suite
from evalhouse.flows.preparing.suites import Suite, load_suite
from evalhouse.flows.results.output import write_count
from evalhouse.flows.server.api import KEYLESS, PrefectApi, PrefectApiError, check_prefect_server, find_api, is_keyless
from evalhouse.flows.server.environment import (
    API_URL,
    LocalServerError,
    configure_prefect_environment,
    find_api_url,
    prefect_home,
    prepare_environment,
)
from evalhouse.flows.server.interrupts import StopOrders
from evalhouse.flows.server.local import SERVE_LOG, LocalServer
from evalhouse.flows.serving.backlog import (
    catch_up,
    is_gate_due,
    is_marked,
    is_served,
    list_unbegun,
    queue_resume,
    queue_unbegun,
    sweep_crashed,
)
from evalhouse.flows.serving.deployments import Registered, list_deleted, register, retire_unserved
from evalhouse.flows.serving.flow_runs import HEARTBEAT_S, HistoryLimit, ServedSuite, fetch_served_suite, list_fires
from evalhouse.flows.serving.notify import describe_failures, describe_trigger, notify_of_break
from evalhouse.tasks.settings.suite import Retention
from evalhouse.warehouse.engine.locks import hold_file, is_file_held
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseMissing
from evalhouse.warehouse.messages import hide_credentials
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs, now_utc
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.runner import Runner

Print = Callable[[str], None]
LoadFlow = Callable[[], "Flow[..., Any]"]
_POLL_S: Final = 2.0
# Looks between two searches for crashed runs: a search takes a second for each run that is in progress.
_SWEEP_EVERY: Final = 10
# How long other processes may take to begin, as after a restart of the machine, until their suites are not served.
_UNSERVED_AFTER_S: Final = 30.0
# A warehouse or a server that is away is reported once in so long.
_REPORT_AGAIN_S: Final = 600.0
# How long our own server may be away before that is reported: it is started again.
_OWN_SERVER_S: Final = 60.0
# A server that ends as soon as it has started, so often, is given up.
_QUICK_END_S: Final = 30.0
_MAX_QUICK_ENDS = 3
# How long the end may take once nothing can be served any more.
_LAST_S: Final = 20.0
# The newest runs of a warehouse that are looked at: more do not start between two looks.
_NEWEST = 50
# A gate decides in the seconds after its run has ended. If its process was killed, its decision is not waited for.
_GATE_TIME: Final = timedelta(minutes=2)
_MAX_LOG_BYTES = 5 * 2**20
_MAX_OLD_LOGS = 3


@dataclass(frozen=True, kw_only=True)
class ServerUse:
    """The server that suites are served by; `own` is the one this process has started."""

    api_url: str
    own: LocalServer | None


@contextlib.contextmanager
def use_server(*, with_server: bool, port: int | None) -> Iterator[ServerUse]:
    """Give the server for this block; our own ends with it. Raises SettingsError, LocalServerError."""
    prepare_environment()
    chosen = find_api_url()
    if chosen is not None:
        if with_server:
            raise SettingsError(
                f"{API_URL} names a server already; leave out --with-server to serve by that one, or unset {API_URL} "
                "(it may be set in Prefect's profile) to have one started"
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
    """Hold a lock for this block; raises SettingsError, with the message `busy`, when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_file(path, patience_s=0, busy=busy))
        except WarehouseBusy as error:
            raise SettingsError(str(error)) from None
        yield


def load_suites(paths: Sequence[str]) -> list[Suite]:
    """Load the suites of some files; raises SettingsError for what cannot be served."""
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
                f"{' and '.join(map(str, others))} are both named {suite.name!r}; give each another `name`"
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
            busy = f"suite {suite.name} is served by another process of this machine already"
            locks.enter_context(hold_alone(_find_suite_lock(server.api_url, suite.name), busy))
        # A run's process must not look for our modules in the folder it is started in, which may have a `flows`.
        os.environ["PYTHONSAFEPATH"] = "1"
        asyncio.run(_Serving(suites, server, load_flow, parallel=parallel, report=report).serve(orders))


def _find_suite_lock(api_url: str, name: str) -> Path:
    digest = hashlib.sha256(f"{api_url} {name}".encode()).hexdigest()[:12]
    return prefect_home() / f"evalhouse-serve-{digest}.lock"


class _Serving:
    """One `evalhouse serve` between its registration and its end."""

    def __init__(
        self, suites: Sequence[Suite], server: ServerUse, load_flow: LoadFlow, *, parallel: int, report: Print
    ) -> None:
        self._suites = list(suites)
        self._server = server
        self._load_flow = load_flow
        self._parallel = parallel
        self._report = report
        self._log = ServeLog(prefect_home() / SERVE_LOG, report)
        self._served: list[ServedSuite] = []
        self._registered: list[Registered] = []
        self._refused: dict[str, str] = {}  # by path, why its changed file is not served
        self._began_at = time.monotonic()
        self._deleted: set[str] = set()  # ids of deployments that are gone, and reported
        self._has_retired = False
        self._has_caught_up = False
        self._history: HistoryLimit | None = None
        self._reported_at: dict[str, float] = {}  # by what was away

    async def serve(self, orders: StopOrders) -> None:
        stopping = asyncio.create_task(orders.wait())
        starting = asyncio.create_task(self._register())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        runner, lines = starting.result(), RunLines(self._served)
        for line in await introduce_serving(self._suites, self._registered, self._server, parallel=self._parallel):
            self._report(line)
        await asyncio.to_thread(self._look, lines)

        async def keep_looking() -> None:
            for number in itertools.count(1):
                await asyncio.sleep(_POLL_S)
                is_sweep = number % _SWEEP_EVERY == 0
                await asyncio.to_thread(self._look, lines, sweep=is_sweep)
                if is_sweep:
                    await self._follow_files(runner)

        running = asyncio.create_task(runner.start())
        looking = asyncio.create_task(keep_looking())
        keeping = asyncio.create_task(self._keep_server())
        while not (runner.started or running.done()):
            await asyncio.sleep(0.05)
        orders.take_back()
        await asyncio.wait({running, looking, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            # Something has failed. The process ends in any case, so that its supervisor can start it again.
            stopping.cancel()
            timer = threading.Timer(_LAST_S, os._exit, args=[BAD_INPUT])
            timer.daemon = True
            timer.start()
            for task in (keeping, looking):
                error = task.exception() if task.done() else None
                if error is not None:
                    self._log(str(error))  # now: the rest may be cut short
                    raise error
            try:
                await asyncio.to_thread(self._api.get, "/health")
            except SettingsError as error:
                # Running evaluations could not report their end to this server: the next start has them.
                self._log(str(error))
                raise
            await running
        keeping.cancel()
        looking.cancel()
        await self._stop(runner, running, lines)

    async def _register(self) -> "Runner":
        """Register the suites with the server, and return what starts their runs."""
        from prefect.runner import Runner  # noqa: PLC0415  # takes a second, in which our server comes up

        if self._server.own is not None:
            await asyncio.to_thread(self._server.own.wait_until_ready)
        patience_s = _OWN_SERVER_S if self._server.own is not None else 0.0
        self._api: PrefectApi = find_api("suites cannot be served", patience_s=patience_s)
        runner = Runner(
            name=f"evalhouse on {socket.gethostname()}",
            limit=self._parallel,
            query_seconds=_POLL_S,
            heartbeat_seconds=HEARTBEAT_S,
            # Flow runs that fall due while no process serves wait for the next one that does.
            pause_on_shutdown=False,
        )
        self._flow = self._load_flow()
        for suite in self._suites:
            registered, served = await self._register_suite(runner, suite)
            self._registered.append(registered)
            self._served.append(served)
        self._limit_history()
        return runner

    async def _register_suite(self, runner: "Runner", suite: Suite) -> tuple[Registered, ServedSuite]:
        registered = await register(self._api, runner, suite, self._flow)
        url = Warehouse(resolve_suite(suite, flags={}).settings.warehouse).location.url
        read = partial(fetch_served_suite, self._api, registered.deployment_id, suite, warehouse_url=url)
        return registered, await asyncio.to_thread(read)

    def _limit_history(self) -> None:
        ages = [(suite.retention or Retention()).prefect for suite in self._suites]
        self._history = HistoryLimit(self._api, list(zip(self._served, ages, strict=True)))

    async def _follow_files(self, runner: "Runner") -> None:
        """Register suites again whose files have changed, and report each: as served, or why it is not."""
        for place, suite in enumerate(self._suites):
            key = str(suite.path)
            try:
                (changed,) = load_suites([key])
                if changed.suite_hash == suite.suite_hash:
                    if self._refused.pop(key, None) is not None:
                        self._log(f"{suite.name}: its file and what is served are equal again")
                    continue
                served = self._served[place]
                url = Warehouse(resolve_suite(changed, flags={}).settings.warehouse).location.url
                if (changed.name, url) != (suite.name, served.warehouse_url):
                    raise SettingsError("its name or its warehouse has changed; restart `evalhouse serve`")
                self._registered[place], self._served[place] = await self._register_suite(runner, changed)
            except Exception as error:  # of the file or of the server, in any form; it is tried again at the next look
                problem = f"{suite.name}: the changed file is not served, and schedule and trigger stay as they were: "
                problem += " ".join(str(error).split())
                if self._refused.get(key) != problem:
                    self._refused[key] = problem
                    self._log(problem)
                    if suite.notify is not None:  # until it is corrected no run begins
                        await asyncio.to_thread(notify_of_break, suite.notify, suite.name, BY_HAND, problem)
                continue
            self._suites[place] = changed
            self._limit_history()
            self._log(f"{suite.name}: its changed file is served")
            for line in await describe_times(changed, self._registered[place]):
                self._log(f"{suite.name}: {' '.join(line.split())}")

    async def _keep_server(self) -> None:
        """Start our own server again whenever it has ended; raises LocalServerError when it cannot be started.

        Requests wait at its socket meanwhile, so that runs and their starters hardly notice.
        """
        own, n_quick = self._server.own, 0
        while True:
            since = time.monotonic()
            while own is None or own.is_alive:
                await asyncio.sleep(_POLL_S / 4)
            n_quick = n_quick + 1 if time.monotonic() - since < _QUICK_END_S else 0
            ended = f"the Prefect server has ended by itself ({own.describe_end()})"
            if n_quick >= _MAX_QUICK_ENDS:
                raise LocalServerError(f"{ended} {n_quick} times, each soon after its start; its log is {own.log_path}")
            self._log(f"{ended} and is started again; its log is {own.log_path}")
            await asyncio.to_thread(own.start_again)
            self._log("the Prefect server answers again")

    def _look(self, lines: "RunLines", *, sweep: bool = False) -> None:
        """Report runs that start and end; at the first look, and to `sweep`, find crashed runs and lost updates."""
        self._log.rotate()
        is_first = not self._has_caught_up
        news: list[str] = []
        try:
            if is_first or sweep:
                # At the first look with our own server, no other process can be working on these suites.
                for served in list_deleted(self._api, self._served):
                    if served.deployment_id not in self._deleted:
                        self._deleted.add(served.deployment_id)
                        gone = "its deployment was deleted in Prefect, so it does not run any more"
                        news.append(f"{served.name}: {gone}; restart `evalhouse serve` to serve it again")
                present = [served for served in self._served if served.deployment_id not in self._deleted]
                news += sweep_crashed(self._api, present, alone=is_first and self._server.own is not None)
                for suite, served in zip(self._suites, self._served, strict=True):
                    if suite.trigger is not None and served in present:
                        found = catch_up(self._api, served, suite.trigger, trigger_is_new=is_first)
                        news += [found] if found is not None else []
                self._has_caught_up = True
            if sweep and not self._has_retired and time.monotonic() - self._began_at >= _UNSERVED_AFTER_S:
                names, url = {suite.name for suite in self._suites}, self._server.api_url
                news += retire_unserved(self._api, names, lambda name: is_file_held(_find_suite_lock(url, name)))
                self._has_retired = True
            news += lines.read_news()
        except (SettingsError, WarehouseError) as error:
            # A server or a warehouse is away for a while.
            trouble, now = " ".join(str(error).split()), time.monotonic()
            if now - self._reported_at.get(trouble, -_REPORT_AGAIN_S) >= _REPORT_AGAIN_S:
                self._reported_at[trouble] = now
                news.append(trouble)
        if sweep and self._history is not None:
            news += self._history.step()
        for line in news:
            self._log(line)

    async def _stop(self, runner: "Runner", running: "asyncio.Task[None]", lines: "RunLines") -> None:
        """Stop running evaluations in good order, and queue their resumption for the next start."""
        served = {suite.name: suite for suite in self._served}

        def list_running() -> list[RunRow]:
            self._look(lines)
            runs = lines.list_running()
            try:
                return [run for run in runs if run.suite is not None and is_served(self._api, served[run.suite], run)]
            except PrefectApiError:  # nor can anything be queued there
                return [run for run in runs if run.kind == "evaluation" and run.trigger != "manual"]

        def queue_stopped() -> None:
            self._look(lines)
            try:
                for run in stopped:
                    suite = served[run.suite or ""]
                    status = find_run(Warehouse(suite.warehouse_url), run.run_id).status
                    if status in ("cancelled", "failed") and queue_resume(self._api, suite, run.run_id):
                        self._log(f"{run.suite}: run {run.run_id} is resumed when this suite is served again")
                for name, flow_runs in beginning.items():
                    if queue_unbegun(self._api, served[name], flow_runs):
                        self._log(f"{name}: the run that was about to begin begins when this suite is served again")
            except (SettingsError, WarehouseError) as error:
                again = "when they are served again, or by `evalhouse resume`"
                self._log(f"runs that were stopped are resumed {again}: {error}")

        def list_beginning() -> dict[str, list[str]]:
            found = {}
            with contextlib.suppress(PrefectApiError):
                for name, suite in served.items():
                    found[name] = list_unbegun(self._api, suite)
            return found

        stopped, beginning = await asyncio.to_thread(list_running), await asyncio.to_thread(list_beginning)
        names = [run.run_id for run in stopped if run.kind != "testset"]
        names += [f"a run of {name} that has not begun to ask" for name, flow_runs in beginning.items() if flow_runs]
        if names:
            self._log(f"stopping {', '.join(names)} in good order; again: at once")
        else:
            self._log("stopping; no run is in progress")
        if runner.started:
            await runner.astop()
            await asyncio.wait({running})
        await asyncio.to_thread(queue_stopped)


async def describe_times(suite: Suite, registered: Registered) -> list[str]:
    """Return lines about when a suite runs, and where Prefect has other settings than its file."""
    lines = []
    for cron, timezone in registered.crons:
        fires = [f"{at:%Y-%m-%d %H:%M}" for at in await list_fires(cron, timezone, n=3, after=datetime.now(UTC))]
        lines += [f"  on schedule    {cron} in {timezone}: next {', '.join(fires)}"]
    if (trigger := suite.trigger) is not None:
        waits = f"when none has followed for {trigger.debounce_s:g} s, or after {trigger.max_total_wait_s:g} s"
        kind = "asset " if trigger.source.is_asset else ""
        lines += [f"  after updates  of {kind}{trigger.source.name}, {waits}"]
    return [*lines, *(f"  in Prefect     {change}" for change in registered.changes)]


async def introduce_serving(
    suites: Sequence[Suite], registered: Sequence[Registered], server: ServerUse, *, parallel: int
) -> list[str]:
    """Return the lines printed when serving begins: where to look, when what runs, how to announce an update."""
    kept = f"; it ends with this process, its data stays in {prefect_home()}" if server.own else ""
    address = hide_credentials(server.api_url)
    # Prefect's pages are at the API's address without /api.
    lines = [f"Prefect server {address}{kept}", f"in a browser   {address.rstrip('/').removesuffix('/api')}"]
    if server.own:
        lines += [f"its key        {server.own.key_note}"]
    elif is_keyless(server.api_url):
        lines += [f"note           {KEYLESS}"]
    lines += [""]
    triggered = []
    for suite, its_deployment in zip(suites, registered, strict=True):
        lines += [f"{suite.name} ({suite.path})", *await describe_times(suite, its_deployment), ""]
        if suite.trigger is not None and not suite.trigger.source.is_asset:
            triggered.append(suite.trigger.source.name)
    if triggered:
        lines += ["To announce an update, from any folder:"]
        lines += [f"  export {API_URL}={address}"]
        lines += [f"  evalhouse kb-updated {shlex.quote(name)} --version V --changed ID" for name in triggered]
        lines += [""]
    at_once = "one run at a time" if parallel == 1 else f"at most {parallel} runs at a time, of a suite one"
    return [*lines, f"Serving {len(suites)} suite{'s' if len(suites) != 1 else ''}, {at_once}. Ctrl-C ends it."]


class ServeLog:
    """Prints lines at the terminal, with their time, and appends them with their date to a file."""

    def __init__(self, path: Path, report: Print) -> None:
        self._path, self._report = path, report
        self.rotate()

    def __call__(self, line: str) -> None:
        now = datetime.now()
        self._report(f"{now:%H:%M:%S} {line}")
        # A full disk must not end the serving.
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as log:
            log.write(f"{now:%Y-%m-%d %H:%M:%S} serve: {line}\n")

    def rotate(self) -> None:
        """Rename a file that has grown large to `NAME.1`; the file that had this name becomes `NAME.2`, and so on."""
        with contextlib.suppress(OSError):
            if not self._path.exists() or self._path.stat().st_size <= _MAX_LOG_BYTES:
                return
            old = [self._path.with_name(f"{self._path.name}.{number}") for number in range(1, _MAX_OLD_LOGS + 1)]
            for place in range(len(old) - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    old[place - 1].rename(old[place])
            # Copied and emptied, because the server still writes into the file that it has open.
            shutil.copyfile(self._path, old[0])
            with self._path.open("r+b") as log:
                log.truncate()


class RunLines:
    """The runs in the warehouses of some suites; `read_news` gives the changes since the look before."""

    def __init__(self, suites: Sequence[ServedSuite]) -> None:
        self._names = {suite.name for suite in suites}
        self._urls = sorted({suite.warehouse_url for suite in suites})
        self._seen: dict[str, RunRow] | None = None

    def list_running(self) -> list[RunRow]:
        """Return the runs that were in progress at the last look."""
        return [run for run in (self._seen or {}).values() if run.status == "running"]

    def read_news(self) -> list[str]:
        """Return a line for each run that has started, ended or been resumed, oldest first.

        At the first look the lines are about the last run of each suite.
        """
        warehouses: dict[str, Warehouse] = {}
        runs: list[RunRow] = []
        for warehouse in map(Warehouse, self._urls):
            with contextlib.suppress(WarehouseMissing):
                for run in list_runs(warehouse, limit=_NEWEST):
                    if run.suite in self._names and not run.is_part_of_run:
                        runs.append(run)
                        warehouses[run.run_id] = warehouse
        runs.sort(key=lambda run: (run.started_at, run.run_id))
        lines = []
        if self._seen is None:
            self._seen = {run.run_id: run for run in runs}
            for run in {run.suite_name: run for run in runs}.values():
                if run.status == "running":
                    lines.append(f"{run.suite_name}: run {run.run_id}, begun before this start, is still running")
                elif not is_marked(run):
                    lines.append(f"{run.suite_name}: the last was run {_describe_end(run, warehouses[run.run_id])}")
            return lines
        for run in runs:
            waits_for_gate = run.kind == "evaluation" and run.finished_at is not None and is_gate_due(run)
            if waits_for_gate and now_utc() - (run.finished_at or run.started_at) < _GATE_TIME:
                continue  # its end is reported together with the gate's decision
            before, self._seen[run.run_id] = self._seen.get(run.run_id), run
            if is_marked(run):  # the search for crashed runs has reported it
                continue
            if before is None or (before.status != "running" and run.status == "running"):
                start = "was started by hand" if run.trigger == "manual" else f"has started {describe_trigger(run)}"
                lines.append(f"{run.suite_name}: run {run.run_id} {start if before is None else 'is resumed'}")
            # By its time too, because a run may be resumed and end between two looks.
            is_news = before is None or (before.status, before.finished_at) != (run.status, run.finished_at)
            if run.status != "running" and is_news:
                lines.append(f"{run.suite_name}: run {_describe_end(run, warehouses[run.run_id])}")
        return lines


def _describe_end(run: RunRow, warehouse: Warehouse) -> str:
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else 0.0
    problem = f": {' '.join(run.problem.split())}" if run.problem else ""
    command = f"evalhouse {'show' if run.status == 'completed' else 'resume'} {run.run_id}"
    end = f"{run.run_id} {run.status} after {seconds:.0f} s, {write_count(run.n_samples or 0, 'sample')}{problem}"
    if run.gate is not None:
        end += f", gate {run.gate}"
    if run.gate == "failed":
        end += f": {describe_failures(warehouse.fetch_rows('gate/failures', run_id=run.run_id))}"
    return end if command in end else f"{end}; {command}"
