"""The nights of a suite in a work pool whose processes are killed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_night_in_a_work_pool_ends_completed_or_notified() -> None:
    """A minute of `python tests/benchmarks/lost_nights.py`, which also strikes workers, and what follows it."""
    script = Path(__file__).parents[1] / "benchmarks" / "lost_nights.py"
    command = [sys.executable, str(script), "--minutes", "1", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^[1-9]\d* nights: ", done.stdout, re.MULTILINE)
