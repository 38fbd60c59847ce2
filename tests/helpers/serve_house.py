"""Suites served for real: a RAG bot over a folder of documents, suites that ask it, and `evalhouse serve` as a process
with its own Prefect server. Everything is looked up where a person would: the warehouse and Prefect's API."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from cli_process import COMMAND, Place
from prefect_holder import copy_database, find_free_port, running_server
from rag_bot import RagBot, start_rag_bot

from evalhouse.flows.server.api import PrefectApi
from evalhouse.flows.serving.flow_runs import make_event

TIMEOUT_S = 240.0
# Each look opens a warehouse, which takes 25 ms and keeps its writer waiting, or asks the server; a fixture waits forty
# seconds for what its runs do.
_LOOK_S = 1.0
DOCUMENTS = {
    "harbour.txt": "High tide at Brankmouth is at six in the morning.\n\nGulls nest on the pier.",
    "lamp.txt": "The lighthouse lamp is green.\n\nThe tower of the lighthouse is forty metres tall.",
    "keeper.txt": "Maud Tregarthen keeps the lighthouse.",
}
QUESTIONS = {
    "tide": ("When is high tide at Brankmouth?", "High tide at Brankmouth is at six in the morning."),
    "lamp": ("What colour is the lighthouse lamp?", "The lighthouse lamp is green."),
    "tall": ("How tall is the tower of the lighthouse?", "The tower is forty metres tall."),
    "keeper": ("Who keeps the lighthouse?", "Maud Tregarthen keeps the lighthouse."),
}


@dataclass(kw_only=True)
class ServeHouse:
    """A folder with documents, their bot, suites, and the processes that serve them, one after the other."""

    folder: Path
    bot: RagBot
    port: int
    place: Place
    auth: str | None = None  # user:password that the server requires
    printed: list[Path] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def client(self) -> Place:
        """The place of another process on the machine that calls commands."""
        keys = {"PREFECT_API_AUTH_STRING": self.auth} if self.auth else {}
        return self.place.with_variables(PREFECT_API_URL=self.api_url, **keys)

    def write_document(self, name: str, text: str) -> None:
        (self.folder / "documents" / name).write_text(text, encoding="utf-8")

    def write_suite(self, name: str, *, cron: str | None = None, kb_name: str | None = None, more: str = "") -> Path:
        """Write a suite with a separate warehouse, so that it has no replies of other suites."""
        schedule = f'[schedule]\ncron = "{cron}"\n' if cron else ""
        trigger = f'[trigger]\nknowledge_base = "{kb_name}"\ndebounce_s = 10\n' if kb_name else ""
        path = self.folder / f"{name}.toml"
        path.write_text(
            f'dataset = "questions.jsonl"\njudge = "lexical"\nwarehouse = "{name}.duckdb"\n{more}\n'
            f'[target]\nurl = "{self.bot.url}"\nattempts = 1\nconcurrency = 1\ntimeout_s = 300.0\n'
            f'contexts = "$.contexts[*].text"\ncontext_ids = "$.contexts[*].id"\n{schedule}{trigger}',
            encoding="utf-8",
        )
        return path

    def serve(self, *suites: Path, parallel: int = 1, with_server: bool = True) -> None:
        """Start serving and wait until it is running."""
        printed = self.folder / f"serve-{len(self.printed)}.txt"
        self.printed.append(printed)
        own = ["--with-server", "--port", str(self.port)] if with_server else []
        place = self.place if with_server else self.client
        with printed.open("wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *map(str, suites), *own, "--parallel", str(parallel)],
                cwd=self.folder,
                env=place.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_until(lambda: "Ctrl-C ends it" in self.output)
        if with_server:
            access = (Path(place.variables["PREFECT_HOME"]) / "evalhouse-server.env").read_text(encoding="utf-8")
            self.auth = access.partition("PREFECT_API_AUTH_STRING=")[2].strip()

    @property
    def output(self) -> str:
        """The output so far of the process that serves."""
        return self.printed[-1].read_text(encoding="utf-8")

    def wait_until(self, is_reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_reached():
            assert time.monotonic() < deadline, f"not reached in time:\n{self.output}{self._read_log()}"
            assert self.process is None or self.process.poll() is None, f"serve has ended:\n{self.output}"
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """`kill -9` of the process that serves and of the runs it has started; its server has to notice by itself."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """Ctrl-C as a terminal sends it: to the whole group."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)
        status = self.process.wait(timeout=TIMEOUT_S)
        self.process = None
        return status

    @property
    def api(self) -> PrefectApi:
        """Prefect's API, with the server's key."""
        keys = {"PREFECT_API_AUTH_STRING": self.auth} if self.auth else {}
        return PrefectApi({"PREFECT_API_URL": self.api_url, **keys})

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401  # Prefect's JSON
        return self.api.post(path, body)

    def announce(self, kb_name: str, *versions: str) -> None:
        """Updates in one request, as a busy pipeline sends them."""
        self.post("/events", [make_event(kb_name, version=version, changed=["lamp.txt#1"]) for version in versions])

    def count_waiting(self, suite: str) -> int:
        """Flow runs that wait for their turn."""
        found = self.post("/flow_runs/filter", {"deployments": {"name": {"any_": [suite]}}, "limit": 200})
        return len([one for one in found if one["state_type"] == "SCHEDULED"])

    def list_flow_runs(self, suite: str) -> list[dict[str, Any]]:
        """Return flow runs of a suite's deployment that have begun, oldest first."""
        found = self.post("/flow_runs/filter", {"deployments": {"name": {"any_": [suite]}}, "limit": 200})
        begun = [one for one in found if one["state_type"] != "SCHEDULED"]
        return sorted(begun, key=lambda one: str(one["start_time"]))

    def query(self, suite: str, sql: str) -> list[dict[str, Any]]:
        """Rows of a suite's warehouse; none before it has one. A writer may hold the file for a moment."""
        path = self.folder / f"{suite}.duckdb"
        while path.exists():
            try:
                with duckdb.connect(str(path), read_only=True) as connection:
                    found: list[dict[str, Any]] = connection.sql(sql).pl().to_dicts()
                    return found
            except duckdb.CatalogException:
                return []
            except duckdb.IOException:
                time.sleep(0.05)
        return []

    def list_runs(self, suite: str, trigger: str | None = None) -> list[dict[str, Any]]:
        """A suite's runs, oldest first."""
        runs = self.query(suite, "from runs order by started_at")
        return [run for run in runs if trigger in (None, run["trigger"])]

    def wait_for_runs(self, suite: str, n: int, *, trigger: str | None = None) -> list[dict[str, Any]]:
        """The runs of a suite when so many of them have completed, in Prefect too."""
        self.wait_until(
            lambda: len([run for run in self.list_runs(suite, trigger) if run["status"] == "completed"]) >= n
        )
        self.wait_until(lambda: all(one["end_time"] for one in self.list_flow_runs(suite)))
        return self.list_runs(suite, trigger)

    def count_judged(self, suite: str, run_id: str) -> dict[str, set[str]]:
        """Return the samples of a run that the judge was asked about, and the others."""
        rows = self.query(
            suite,
            "select sample_id, bool_or(status = 'ok') as asked from llm_calls "
            f"where run_id = '{run_id}' group by sample_id",
        )
        return {
            "asked": {row["sample_id"] for row in rows if row["asked"]},
            "reused": {row["sample_id"] for row in rows if not row["asked"]},
        }

    def list_responses(self, suite: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the bot's answers in a run, by sample."""
        rows = self.query(suite, f"select sample_id, answer, contexts from responses where run_id = '{run_id}'")
        return {row.pop("sample_id"): row for row in rows}

    def _read_log(self) -> str:
        log = Path(self.place.variables["PREFECT_HOME"]) / "evalhouse-serve.log"
        return f"\nits server:\n{log.read_text()[-3000:]}" if log.exists() else ""


@contextlib.contextmanager
def start_prefect_server(house: ServeHouse, *, requires_key: bool = True) -> Iterator[None]:
    """Run a server as the user would start it, with a key or without, for the block."""
    house.auth = "admin:sesame" if requires_key else None
    keys = {"PREFECT_SERVER_API_AUTH_STRING": house.auth} if house.auth else {}
    with running_server(house.folder, house.port, house.place.environment() | keys):
        yield


def soon(seconds: float) -> str:
    """A cron expression that is due once, at the first full minute after so many seconds."""
    at = datetime.now(UTC) + timedelta(seconds=seconds + 60)
    return f"{at.minute} {at.hour} {at.day} {at.month} *"


@contextlib.contextmanager
def open_serve_house(folder: Path) -> Iterator[ServeHouse]:
    """A house whose processes end with the block."""
    (folder / "documents").mkdir()
    for name, text in DOCUMENTS.items():
        (folder / "documents" / name).write_text(text, encoding="utf-8")
    rows = [{"id": key, "question": asked, "ground_truth": truth} for key, (asked, truth) in QUESTIONS.items()]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    copy_database(folder / "prefect")
    place = Place(folder=folder, variables={"PREFECT_HOME": str(folder / "prefect")})
    with start_rag_bot(folder / "documents") as bot:
        house = ServeHouse(folder=folder, bot=bot, port=find_free_port(), place=place)
        try:
            yield house
        finally:
            bot.configure(hold_after=None)
            if house.process is not None:
                house.kill()
