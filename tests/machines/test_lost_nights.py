"""The nights of a suite in a work pool whose processes are killed, for as many minutes as

    LOST_NIGHTS_MINUTES=20 pytest -n 0 -m slow -s tests/machines/test_lost_nights.py

says. Prefect keeps events back for up to a quarter of an hour, so even one minute takes longer than all other slow
tests; without the variable it is left out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MINUTES = os.environ.get("LOST_NIGHTS_MINUTES")


@pytest.mark.slow
@pytest.mark.skipif(MINUTES is None, reason="LOST_NIGHTS_MINUTES does not say for how long")
def test_every_night_in_a_work_pool_ends_completed_or_notified() -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "lost_nights.py"
    command = [sys.executable, str(script), "--minutes", str(MINUTES), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^[1-9]\d* nights: ", done.stdout, re.MULTILINE)
