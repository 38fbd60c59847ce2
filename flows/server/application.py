"""Prefect's own API application, served for one run or, with all its services, for as long as suites are. The database
is the user's own Prefect database, so that a server started later shows the run; Prefect's own migrations make one that
does not exist yet, which takes some four seconds once for each home. Imported by `prefect_server_process` alone: it
takes two seconds.

What it uses of Prefect beyond the documented: `create_app`, as Prefect's own command line does; `METRICS`, the counters
of the in-memory broker; and the database interface, for counting at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa
import uvicorn
from filelock import FileLock
from prefect.server.api.server import create_app
from prefect.server.database import provide_database_interface
from prefect.server.schemas.states import TERMINAL_STATES
from prefect.server.utilities.messaging.memory import METRICS
from prefect.settings import get_current_settings
from uvicorn.config import STARTUP_FAILURE

_POLL_S = 0.02
_EVENTS_TOPIC = "events"
_FLOW_RUN_PATH = re.compile(r"/flow_runs/([0-9a-f]{8}-[0-9a-f-]{27})")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class StopOrder(Protocol):
    """When to stop; `prefect_server_process.StopOrder`."""

    def defer_to(self, loop: asyncio.AbstractEventLoop) -> None: ...

    async def wait(self) -> float: ...


class FlowRunWatch:
    """Passes requests on to Prefect's application and remembers which flow runs they were about."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.flow_run_ids: set[UUID] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (found := _FLOW_RUN_PATH.search(scope["path"])):
            self.flow_run_ids.add(UUID(found[1]))
        await self._application(scope, receive, send)


async def serve(
    listener: socket.socket, order: StopOrder, write: Callable[[bytes], object], *, is_lasting: bool = False
) -> int:
    """From a listening socket to the last recorded event, telling by `write` when it answers and when it has stopped.
    Returns the exit status: 3, like uvicorn, when Prefect's application did not start; the log has the reason then."""
    application = create_app(ephemeral=not is_lasting)
    watch = FlowRunWatch(application)
    server = uvicorn.Server(
        # What a server has seen in weeks is not counted at its end.
        uvicorn.Config(
            application if is_lasting else watch,
            lifespan="on",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=3,
        )
    )
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two first runs at once would migrate the same database twice.
    with FileLock(home / "evalhouse-server-start.lock"):
        serving = asyncio.create_task(_serve(server, listener))
        while not server.started and not serving.done():
            await asyncio.sleep(_POLL_S)
    if not server.started:
        return STARTUP_FAILURE
    order.defer_to(asyncio.get_running_loop())
    write(_line(name="ready"))
    drain_s = await order.wait()
    await _wait_until_consumed(server, drain_s)
    server.should_exit = True
    await serving
    write(_line(name="stopped", **await _count_task_runs(watch.flow_run_ids)))
    return 0


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    with contextlib.suppress(SystemExit):  # uvicorn's word for an application that did not start
        await server.serve(sockets=[listener])


async def _wait_until_consumed(server: uvicorn.Server, timeout_s: float) -> None:
    """Waits until every event has gone from the client's connection through Prefect's broker to the recorder. The
    recorder writes what it holds when the application shuts down; what is still with the broker then is lost."""
    events = METRICS[_EVENTS_TOPIC]
    deadline = asyncio.get_running_loop().time() + timeout_s
    while server.server_state.tasks or events["consumed"] < events["published"]:
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_POLL_S)


async def _count_task_runs(flow_run_ids: set[UUID]) -> dict[str, int]:
    database = provide_database_interface()
    task_run = database.TaskRun
    counts = sa.select(task_run.state_type, sa.func.count()).where(task_run.flow_run_id.in_(flow_run_ids))
    async with database.session_context() as session:
        by_state = dict((await session.execute(counts.group_by(task_run.state_type))).tuples().all())
    return {
        "n_flow_runs": len(flow_run_ids),
        "n_task_runs": sum(by_state.values()),
        "n_unfinished": sum(n for state, n in by_state.items() if state not in TERMINAL_STATES),
    }


def _line(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"
