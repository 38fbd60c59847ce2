"""These tests fill warehouses of their own, write and read each a dozen times, and start no process."""

import pytest


@pytest.fixture(autouse=True)
def _one_opening(one_opening: None) -> None:
    return
