"""Runs spread over real workers: the session's Prefect server or a separate one, on SQLite or PostgreSQL, workers
as processes, and a lake. Workers are killed as machines die, with all they have started. Linux alone: descendants are
found in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli_process import Place, finish
from kill_runs import NotingEndpoint
from prefect_holder import copy_database, find_free_port, list_family, running_server

from evalhouse.flows.server.api import PrefectApi
from evalhouse.warehouse.store import Warehouse

POOL = "judges"
TIMEOUT_S = 600.0


@dataclass(kw_only=True)
class Worker:
    """One worker, like that of a separate machine."""

    process: subprocess.Popen[bytes]
    log: Path

    def is_busy(self) -> bool:
        """Return whether it has a part, whose process it has started."""
        return len(list_family(self.process.pid)) > 1

    def kill(self) -> None:
        """`kill -9` of the worker and of all that it has started."""
        for pid in list_family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()


@dataclass(kw_only=True)
class PoolHouse:
    """A folder with a dataset, a lake, a Prefect server and workers."""

    folder: Path
    server: dict[str, str]  # the variables that lead to it
    url: str  # of the lake
    endpoint: NotingEndpoint
    more: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """The place where commands are called, and workers are started."""
        return Place(
            folder=self.folder,
            variables={
                "PREFECT_HOME": str(self.folder / "prefect"),
                **self.server,
                "PREFECT_WORKER_QUERY_SECONDS": "1",
                "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
                "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
                "DO_NOT_TRACK": "1",
                "EVALHOUSE_WAREHOUSE": self.url,
                "EVALHOUSE_STATE_DIR": str(self.folder / "state"),
                "OPENAI_API_KEY": "sk-test",
                # Limits of an endpoint are shared, but not at a loopback address: each machine has another one there.
                "OPENAI_BASE_URL": self.endpoint.base_url.replace("127.0.0.1", "0.0.0.0"),
                **self.more,
            },
        )

    def start_worker(self) -> Worker:
        name = f"worker-{len(self.workers) + 1}"
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--name", name, "--limit", "1"],
                cwd=self.folder,
                env=self.place.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        worker = Worker(process=process, log=log)
        self.workers.append(worker)
        return worker

    def make_pool(self) -> None:
        """A pool whose parts are one process each; by itself Prefect starts two more, which look for code to fetch."""
        known: Any = self._api.get("/collections/views/aggregate-worker-metadata")
        template = known["prefect"]["process"]["default_base_job_configuration"]
        template["variables"]["properties"]["command"]["default"] = f"{sys.executable} -m prefect.engine"
        self.post("/work_pools/", {"name": POOL, "type": "process", "base_job_template": template})

    @property
    def _api(self) -> PrefectApi:
        return PrefectApi(self.server)

    def get(self, path: str) -> Any:  # noqa: ANN401  # Prefect's JSON
        return self._api.get(path)

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401  # Prefect's JSON
        return self._api.post(path, body)

    def list_parts(self) -> list[dict[str, Any]]:
        """The flow runs of all parts, in the order in which they were given out."""
        found = self.post("/flow_runs/filter", {"flows": {"name": {"any_": ["judge-part"]}}, "limit": 200})
        return sorted(found, key=lambda one: str(one["created"]))

    def query(self, sql: str) -> list[dict[str, Any]]:
        return Warehouse(self.url).read_rows(sql)

    def wait_until(self, is_reached: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_reached():
            assert time.monotonic() < deadline, f"not reached in time\n{self.read_logs()}"
            assert process is None or process.poll() is None, f"the command has ended: {finish(process)}"
            time.sleep(0.05)

    def read_logs(self) -> str:
        logs = [*self.folder.glob("*.log")]
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


@contextlib.contextmanager
def open_pool_house(
    folder: Path,
    url: str,
    endpoint: NotingEndpoint,
    *,
    has_pages: bool = False,
    database: str | None = None,
    **more: str,
) -> Iterator[PoolHouse]:
    """A house whose Prefect server is up with all of Prefect's services, and with no worker yet; all processes end with
    the block."""
    with contextlib.ExitStack() as stack:
        house = PoolHouse(folder=folder, server={}, url=url, endpoint=endpoint, more=more)
        port = find_free_port()
        house.server["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        environment = house.place.environment() | {
            "PREFECT_SERVER_UI_ENABLED": str(has_pages).lower(),
            "PREFECT_UI_API_URL": house.server["PREFECT_API_URL"],
        }
        if database is None:
            copy_database(folder / "prefect")
        else:
            url = database.replace("postgresql:", "postgresql+asyncpg:")
            environment["PREFECT_API_DATABASE_CONNECTION_URL"] = url
        stack.enter_context(running_server(folder, port, environment))
        house.make_pool()
        try:
            yield house
        finally:
            for worker in house.workers:
                worker.stop()
