"""These tests fill warehouses of their own, write and read each a dozen times, and start no process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kept_open import kept_open


@pytest.fixture(autouse=True)
def _kept_open(tmp_path: Path) -> Iterator[None]:
    with kept_open(tmp_path):
        yield
