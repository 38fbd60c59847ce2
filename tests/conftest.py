"""Settings of every test: none starts a Prefect server by accident, and none finds a key that it did not set."""

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import pytest
from browser import Browser, open_browser
from cli_house import House, copy_house
from cli_process import LEFT_OUT, UNWRAPPED, Ask, call_here
from hypothesis import is_hypothesis_test, settings
from kept_open import kept_open, stays_open
from kept_reader import reader_kept
from prefect_holder import close_session, find_home, open_session
from warehouse_runs import tables_laid

if TYPE_CHECKING:
    from endpoint import Endpoint
    from postgres_server import PostgresServer

os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
# With PYTHONDONTWRITEBYTECODE each of some hundred processes would compile everything again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
_FOLDER = tempfile.TemporaryDirectory(prefix="evalhouse-session-")
# What is imported to collect the tests stays: to look through it for garbage took a fifth of the collecting.
gc.disable()
# Each HTTP client reads all certificate authorities, which takes 30 ms; no server of a test is signed by one.
_first, _end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
_AUTHORITY = Path(_FOLDER.name) / "authority.pem"
_AUTHORITY.write_text(_first + _end, encoding="utf-8")
os.environ["SSL_CERT_FILE"] = str(_AUTHORITY)


class _NoPandas:
    """DuckDB imports pandas at every statement with parameters: 4 % of the CPU of all tests, where it is not installed.

    An import of it fails at once. (With None in `sys.modules` DuckDB takes frames of Polars for something else.)
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas" and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


if find_spec("pandas") is None:
    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]
open_session()
_MODEL_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE")


# These take longest or wait much, and so are begun first: a file that one worker begins last holds up the end.
_LONGEST = (
    "test_serve.py", "test_serve_operators.py", "test_evaluate_deployed.py", "test_prefer.py", "test_make.py",
    "test_prompt_compare.py", "test_environment.py", "test_pull_request.py", "test_compare_runs.py",
    "test_document_kinds.py", "test_safety.py", "test_sql_page.py", "test_forget.py", "test_cli_sample_budget.py",
    "test_planted_regressions.py", "test_noise_floors.py", "test_living_set.py", "test_prompts_strict.py",
    "test_cli_gate.py", "test_receiver.py", "test_review_questions.py", "test_benchmark_command.py",
    "test_cli_rescore.py", "test_collect_repeats.py", "test_serve_crash.py", "test_serve_server.py",
    "test_pool_runs.py", "test_pool_stops.py", "test_pool_bucket.py", "test_bad_machine.py",
)  # fmt: skip
# Rooms and files whose tests are about opening a warehouse, or have other processes that open it.
_OPENING = frozenset({
    "machines", "ui",
    "test_bad_machine.py", "test_batch_runs.py", "test_cookbook.py", "test_evaluate.py", "test_held_warehouse.py",
    "test_runner.py",
    "test_running.py", "test_warehouse_connection.py", "test_warehouse_migrate.py",
    "test_warehouse_query.py", "test_warehouse_spool.py",
})  # fmt: skip
# Rooms whose tests are about making one.
_MAKING = frozenset({"machines", "store"})
_HOUSE = "house-of-all"
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("slow", max_examples=100, deadline=None)


def _find_room(request: pytest.FixtureRequest) -> str:
    return request.path.relative_to(Path(__file__).parent).parts[0]


def pytest_xdist_auto_num_workers() -> int:
    """The longest files wait for servers and processes; a second worker more than cores gained nothing."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("slow" if config.option.markexpr == "slow" else "quick")


def pytest_unconfigure() -> None:
    close_session()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Start each worker in a different room: pytest compiles a test file unless another worker has done so, which takes
    10 s of CPU in all, and workers in the same order would each compile all files."""
    report = yield
    if collector.path == Path(__file__).parent:
        worker, n_workers = (
            os.environ.get("PYTEST_XDIST_WORKER", "gw0"),
            os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"),
        )
        begin = int(worker.removeprefix("gw")) * len(report.result) // int(n_workers)
        report.result = [*report.result[begin:], *report.result[:begin]]
    return report


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, in one order for all workers; among the slow tests every property once more, on more
    examples."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: (places.get(item.path.name, len(places)), item.path))
    if config.option.markexpr == "slow":
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def _no_model_variables() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _MODEL_VARIABLES if name in os.environ}
    yield
    for name in _MODEL_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(kept)


@pytest.fixture
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries, also after a rate limit, after hundredths of a second instead of seconds."""
    monkeypatch.setattr("evalhouse.tasks.judge.protocol._BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr("evalhouse.tasks.asking.limits._PAUSE_S", 0.02)


@pytest.fixture(scope="session")
def prefect_home() -> Path:
    """Prefect's folder for all `evalhouse` commands of the session, which share a server (see `cli_process.Place`)."""
    return find_home()


@pytest.fixture
def endpoint() -> "Iterator[Endpoint]":
    """An endpoint that answers and keeps every request, where the test's `openai:` judges ask; files that need a
    different one define their fixture."""
    from endpoint import running_endpoint  # noqa: PLC0415  # most files need none
    from live_runs import point_to  # noqa: PLC0415

    with running_endpoint(keep_bodies=True) as running:
        point_to(running.base_url)
        yield running


@pytest.fixture(scope="session", autouse=True)
def _one_reader() -> Iterator[None]:
    with reader_kept():
        yield


@pytest.fixture(scope="session", autouse=True)
def wide_tables() -> None:
    """Make tables wider than the 100 columns of a pipe, for tests that read rows. Not set earlier: pytest's lines would
    be as wide."""
    os.environ["COLUMNS"] = str(UNWRAPPED)


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> House:
    """A warehouse with two runs, made once a session. Read it; what changes a warehouse works on a copy."""
    return copy_house(tmp_path_factory.mktemp(_HOUSE) / "house", prefect_home)


@pytest.fixture
def url(house: House, tmp_path: Path) -> str:
    """A copy of the house's warehouse, to be changed."""
    return str(shutil.copy(house.path, tmp_path / "copy.duckdb"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real browser without a window; without one the test is skipped. A test closes each page that it opens."""
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """A PostgreSQL of the session, where each test has separate databases; without one the test is skipped."""
    from postgres_server import start_postgres  # noqa: PLC0415  # few files need one

    with start_postgres() as server:
        yield server


@pytest.fixture(autouse=True)
def _one_opening(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Within a test each warehouse is opened once, but where opening it is what the test is about."""
    if _OPENING.intersection((_find_room(request), request.path.name)):
        yield
        return
    passing = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    with kept_open(tmp_path_factory.getbasetemp(), passing):
        yield


@pytest.fixture(scope="module", autouse=True)
def _tables_laid(request: pytest.FixtureRequest) -> Iterator[None]:
    """To make a warehouse takes a third of a second, nearly all of it for the migrations."""
    with contextlib.nullcontext() if _find_room(request) in _MAKING else tables_laid():
        yield


@pytest.fixture(scope="module", autouse=True)
def _house_stays_open(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module's tests read the house one after the other."""
    if _OPENING.intersection((_find_room(request), request.path.name)):
        yield
        return
    with stays_open(tmp_path_factory.getbasetemp() / f"{_HOUSE}0"):
        yield


@pytest.fixture
def ask(house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Calls a command in this process, in the folder of the house."""
    for name in list(os.environ):
        if name.startswith(LEFT_OUT):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", str(UNWRAPPED))
    monkeypatch.chdir(house.place.folder)
    return lambda *arguments: call_here(capsys, *arguments)
