"""What holds for every test: none starts a Prefect server by accident, and none finds a key that is not its own."""

import os
from collections.abc import Iterator

import pytest

os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
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
    monkeypatch.setattr("tasks.asking._BACKOFF_FIRST_S", 0.01)
