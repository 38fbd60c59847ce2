"""The session's warehouse for reports, as a page of it is made fastest."""

from pathlib import Path

import pytest
from cli_house import House, copy_stored_house


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> House:
    """A warehouse with two runs of which everything is stored. Read it; what changes a warehouse works on a copy."""
    return copy_stored_house(tmp_path_factory.mktemp("stored") / "house", prefect_home)
