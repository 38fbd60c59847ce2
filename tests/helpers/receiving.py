"""A receiver in this process: asked without a network, or served at a port to any process that sends by OTLP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from evalhouse.flows.receiver import Receiver, SpanKeeper, make_app
from evalhouse.flows.server.connections import listen, make_server
from evalhouse.tasks.datasets.read import StagedDataset, stage_of
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import ReceiverSettings, TraceWindow
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

TOKEN = "0123456789abcdef0123456789abcdef"
ALWAYS = TraceWindow(last="9999w", until="2100-01-01T00:00:00")
WAITING = {"sampling": {"share": 0.0, "wait_s": 60}}
HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}


@dataclass(kw_only=True)
class Receiving:
    """A receiver and its warehouse; `reports` are its lines at the end."""

    warehouse: Warehouse
    receiver: Receiver
    reports: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def keeper(self) -> SpanKeeper:
        return self.receiver.keeper

    def post(self, body: object, *, headers: Mapping[str, str] = {}, path: str = "/v1/traces") -> httpx.Response:
        """Send a body, JSON unless it is bytes."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=make_app(self.receiver, self.reports.append))
            async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
                return await client.post(path, content=content, headers={**HEADERS, **headers})

        return asyncio.run(send())

    def read(self) -> list[dict[str, Any]]:
        """The spans in the warehouse."""
        return self.warehouse.read_rows("select * from spans order by started_at, span_id")


def read_stored(path: Path, window: TraceWindow | None = ALWAYS) -> tuple[list[StoredSample], StagedDataset]:
    """The samples that the traces of a warehouse become."""
    staged = stage_of(RunSettings(dataset="traces", traces=window, warehouse=str(path)))
    try:
        return staged.staging.read_between(1, staged.n_samples), staged
    finally:
        staged.staging.discard()


def keep_and_kill(path: Path, traces: object, logs: object = None) -> None:
    """Have a process keep these requests by sampling that waits, and kill it as soon as it acknowledged them."""
    script = (
        "import sys, os, signal, orjson; sys.path[:0] = [sys.argv[4]]; from receiving import WAITING, make_settings\n"
        "from evalhouse.flows.receiver import SpanKeeper; from evalhouse.warehouse.store import Warehouse\n"
        "from evalhouse.tasks.datasets.otel import read_otlp, read_otlp_logs\n"
        "keeper = SpanKeeper(Warehouse(sys.argv[1]), make_settings(**WAITING))\n"
        "keeper.keep(read_otlp(orjson.loads(sys.argv[2]), print), print)\n"
        "keeper.keep(read_otlp_logs(orjson.loads(sys.argv[3]), print), print); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    sent = [orjson.dumps(request).decode() for request in (traces, logs or {})]
    command = [sys.executable, "-c", script, str(path), *sent, str(Path(__file__).parent)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def make_settings(**tables: Any) -> ReceiverSettings:  # noqa: ANN401  # the tables of a receiver's file
    return ReceiverSettings.model_validate_json(orjson.dumps(tables))


@contextlib.contextmanager
def receiving(path: Path, **tables: Any) -> Iterator[Receiving]:  # noqa: ANN401  # as make_settings
    """A receiver for the warehouse at a path; when the block ends all that it kept is in there."""
    warehouse, settings = Warehouse(str(path)), make_settings(**tables)
    warehouse.make_ready()
    keeper = SpanKeeper(warehouse, settings)
    try:
        yield Receiving(warehouse=warehouse, receiver=Receiver(keeper=keeper, settings=settings, token=TOKEN))
    finally:
        keeper.close()


@contextlib.contextmanager
def serving(path: Path, **tables: Any) -> Iterator[Receiving]:  # noqa: ANN401  # as make_settings
    """Return the same at a separate port, served from another thread."""
    with receiving(path, **tables) as served, listen("127.0.0.1", None, 0) as listening:
        served.port = int(listening.getsockname()[1])
        server = make_server(make_app(served.receiver, served.reports.append), leave_s=5)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield served
        finally:
            server.should_exit = True
            thread.join()
