"""What holds for every test: none starts a Prefect server by accident, and none finds a key that is not its own."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_house import House, build_house
from cli_process import LEFT_OUT, Finished, Place, SharedServer, call_here

os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
# What processes tell each other of a shared limit stays in a folder of the session.
_LIMITS = tempfile.TemporaryDirectory(prefix="evalhouse-limits-")
os.environ["EVALHOUSE_LIMITS_DIR"] = _LIMITS.name
_MODEL_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE")


@pytest.fixture(autouse=True)
def _no_model_variables() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _MODEL_VARIABLES if name in os.environ}
    yield
    for name in _MODEL_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(kept)


@pytest.fixture
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries after hundredths of a second instead of seconds."""
    monkeypatch.setattr("evalhouse.tasks.asking.asker._BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr("evalhouse.tasks.targets.attempts._BACKOFF_FIRST_S", 0.01)


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prefect's folder for all `evalhouse` processes of the session, which share a server (see `cli_process.Place`)."""
    shared = SharedServer(tmp_path_factory.mktemp("prefect"))
    Place.shared = shared
    yield shared.home
    Place.shared = None
    shared.stop()


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> House:
    """A warehouse with two runs, made once. Read it; what changes a warehouse works on a copy."""
    return build_house(tmp_path_factory.mktemp("house"), prefect_home)


@pytest.fixture
def ask(house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Calls a command in this process, in the folder of the house."""
    for name in list(os.environ):
        if name.startswith(LEFT_OUT):
            monkeypatch.delenv(name)
    monkeypatch.chdir(house.place.folder)
    return lambda *arguments: call_here(capsys, *arguments)
