"""Serving suites: they are registered with a Prefect server, and this process starts their runs until it is stopped.

The server is the one that is configured, or one of ours that lasts as long as this process. Each run is a process of
its own that Prefect's runner starts. The order to stop has the runs under way stop in good order and queues their
resumption; `backlog` finds what an end in bad order has left. What the terminal shows of runs is read from the
warehouse, which has it however a run was started.
"""

import asyncio
import contextlib
import hashlib
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import Suite, load_suite
from evalhouse.flows.preparing.triggers import list_fires
from evalhouse.flows.server.api import PrefectApi, check_prefect_server, find_api
from evalhouse.flows.server.environment import (
    API_URL,
    configure_prefect_environment,
    configure_serving_environment,
    find_api_url,
    prefect_home,
)
from evalhouse.flows.server.interrupts import StopOrders
from evalhouse.flows.server.local import LocalServer, LocalServerError
from evalhouse.flows.serving.backlog import catch_up, queue_resume, sweep_crashed
from evalhouse.flows.serving.flow_runs import ServedSuite, read_served_suite
from evalhouse.flows.serving.notify import describe_trigger
from evalhouse.flows.serving.suite_runs import resolve_suite
from evalhouse.tasks.messages import hide_credentials
from evalhouse.warehouse.engine.locks import hold_file
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseMissing
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.runner import Runner

_POLL_S: Final = 2.0
# Looks between two searches for what was lost: one takes a second for each run that is under way.
_SWEEP_EVERY: Final = 10
Print = Callable[[str], None]
LoadFlow = Callable[[], "Flow[..., Any]"]
# Newest runs of a warehouse that are looked at: more do not start between two looks.
_NEWEST = 50


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
            configure_serving_environment(server.api_url, auth_string=server.auth_string)
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


class RunLines:
    """Looks at the warehouses of some suites; `read_news` gives what has changed since the look before."""

    def __init__(self, suites: Sequence[ServedSuite]) -> None:
        self._names = {suite.name for suite in suites}
        self._urls = sorted({suite.warehouse_url for suite in suites})
        self._seen: dict[str, RunRow] = {}
        self._seen = {run.run_id: run for run in self._list_runs()}

    def list_under_way(self) -> list[RunRow]:
        """The runs that were under way at the last look."""
        return [run for run in self._seen.values() if run.status == "running"]

    def read_news(self) -> list[str]:
        """A line for each run that has started, ended or gone on, oldest first."""
        lines = []
        for run in sorted(self._list_runs(), key=lambda run: run.started_at):
            before = self._seen.get(run.run_id)
            if before is None or (before.status != "running" and run.status == "running"):
                lines.append(_describe_start(run, is_resumed=before is not None))
            if run.status != "running" and (before is None or before.status == "running"):
                lines.append(_describe_end(run))
            self._seen[run.run_id] = run
        return lines

    def _list_runs(self) -> list[RunRow]:
        runs = []
        for url in self._urls:
            with contextlib.suppress(WarehouseMissing):
                runs += list_runs(Warehouse(url), limit=_NEWEST)
        return [run for run in runs if run.suite in self._names and run.kind != "noise"]


def _describe_start(run: RunRow, *, is_resumed: bool) -> str:
    what = "goes on" if is_resumed else f"has started {describe_trigger(run)}"
    return f"{_now()} {run.suite}: run {run.run_id} {what}"


def _describe_end(run: RunRow) -> str:
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else 0.0
    problem = f": {' '.join(run.problem.split())}" if run.problem else ""
    command = f"evalhouse {'show' if run.status == 'completed' else 'resume'} {run.run_id}"
    end = f"{run.suite}: run {run.run_id} {run.status} after {seconds:.0f} s, {run.n_samples or 0} samples{problem}"
    return f"{_now()} {end}" if command in end else f"{_now()} {end}; {command}"


def _now() -> str:
    return f"{datetime.now():%H:%M:%S}"


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
        self._served: list[ServedSuite] = []
        self._trouble = ""

    async def serve(self, orders: StopOrders) -> None:
        stopping = asyncio.create_task(orders.wait())
        starting = asyncio.create_task(self._register())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        runner = starting.result()
        await asyncio.to_thread(self._take_up)
        lines = await asyncio.to_thread(RunLines, self._served)
        for line in introduce_serving(self._suites, self._server, parallel=self._parallel):
            self._report(line)
        running = asyncio.create_task(runner.start())
        looking = asyncio.create_task(self._look(lines))
        while not (runner.started or running.done()):
            await asyncio.sleep(0.05)
        orders.take_back()
        await asyncio.wait({running, looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
        await self._stop(runner, running, lines)
        if not stopping.done():
            stopping.cancel()
            await asyncio.gather(running, looking)  # raises what has ended them

    async def _register(self) -> "Runner":
        from prefect.runner import Runner  # noqa: PLC0415  # takes a second, in which our server comes up

        from evalhouse.flows.serving.deployments import HEARTBEAT_S, make_deployment, watch_heartbeats  # noqa: PLC0415

        if self._server.own is not None:
            await asyncio.to_thread(self._server.own.wait_until_ready)
        self._api: PrefectApi = find_api("suites cannot be served")
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
        return runner

    def _describe(self, suite: Suite, deployment_id: str) -> ServedSuite:
        url = Warehouse(resolve_suite(suite, flags={}).settings.warehouse).location.url
        return read_served_suite(self._api, deployment_id, suite, warehouse_url=url)

    def _take_up(self) -> None:
        """What was left by those who served before: crashed runs, and updates that no run has answered."""
        for line in sweep_crashed(self._api, self._served, alone=self._server.own is not None):
            self._report(line)
        for line in self._catch_up(trigger_is_new=True):
            self._report(line)

    def _catch_up(self, *, trigger_is_new: bool = False) -> list[str]:
        lines = []
        for suite, served in zip(self._suites, self._served, strict=True):
            if suite.trigger is None:
                continue
            quiet_s = suite.trigger.debounce_s
            n_updates = catch_up(self._api, served, quiet_s=quiet_s, trigger_is_new=trigger_is_new)
            if n_updates:
                lines.append(f"{suite.name}: updates of {served.kb_name} without a run: {n_updates}; one is queued")
        return lines

    async def _look(self, lines: RunLines) -> None:
        """Report runs that start and end, and find those that have crashed."""
        n_looks = 0
        while True:
            await asyncio.sleep(_POLL_S)
            n_looks += 1
            own = self._server.own
            if own is not None and not own.is_alive:
                raise LocalServerError(f"the Prefect server has ended by itself; its log is {own.log_path}")
            await asyncio.to_thread(self._look_once, lines, sweep=n_looks % _SWEEP_EVERY == 0)

    def _look_once(self, lines: RunLines, *, sweep: bool) -> None:
        try:
            news = lines.read_news()
            if sweep:
                news += sweep_crashed(self._api, self._served) + self._catch_up()
        except (SettingsError, WarehouseError) as error:
            # A server or a warehouse that is away for a while; what it says is shown once.
            news = [] if str(error) == self._trouble else [str(error)]
            self._trouble = str(error)
        for line in news:
            self._report(line)

    async def _stop(self, runner: "Runner", running: "asyncio.Task[None]", lines: RunLines) -> None:
        await asyncio.to_thread(self._look_once, lines, sweep=False)
        under_way = [run for run in lines.list_under_way() if run.kind == "evaluation" and run.trigger != "manual"]
        if under_way:
            self._report(f"stopping {', '.join(run.run_id for run in under_way)} in good order; again: at once")
        if runner.started:
            await runner.astop()
            await asyncio.wait({running})
        await asyncio.to_thread(self._look_once, lines, sweep=False)
        await asyncio.to_thread(self._queue_stopped, under_way)

    def _queue_stopped(self, under_way: Sequence[RunRow]) -> None:
        """Runs that have stopped because we did go on when they are served again."""
        for run in under_way:
            served = next(suite for suite in self._served if suite.name == run.suite)
            if find_run(Warehouse(served.warehouse_url), run.run_id).status not in ("cancelled", "failed"):
                continue
            if queue_resume(self._api, served, run.run_id):
                self._report(f"{run.suite}: run {run.run_id} goes on when this suite is served again")


def introduce_serving(suites: Sequence[Suite], server: ServerUse, *, parallel: int) -> list[str]:
    """What a person reads when serving begins: where to look, when what runs, how to announce an update."""
    kept = f"; it ends with this process, its data stays in {prefect_home()}" if server.own else ""
    address = hide_credentials(server.api_url)
    # Where Prefect puts its own pages.
    lines = [f"Prefect server {address}{kept}", f"in a browser   {address.rstrip('/').removesuffix('/api')}", ""]
    for suite in suites:
        lines += [f"{suite.name} ({suite.path})", *_introduce_schedule(suite), *_introduce_trigger(suite), ""]
    triggered = [suite.trigger.knowledge_base for suite in suites if suite.trigger]
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
    quiet = f"{suite.trigger.debounce_s:g} s"
    return [f"  after updates  of {suite.trigger.knowledge_base}, when none has followed for {quiet}"]
