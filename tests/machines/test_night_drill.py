"""Every night's run completes once and no process is left over, though processes are killed and files held meanwhile.

Three minutes by themselves; an hour by

    NIGHT_DRILL_MINUTES=60 pytest -n 0 -m slow -s tests/machines/test_night_drill.py
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from night_drill import FILE, LAKE, N_SAMPLES, Drill, write_suites
from postgres_server import start_postgres
from serve_house import open_serve_house

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("NIGHT_DRILL_MINUTES", "3"))
SEED = int(os.environ.get("NIGHT_DRILL_SEED", str(time.time_ns() % 10_000)))


def test_every_run_completes_once_after_kills(tmp_path: Path) -> None:
    print(f"NIGHT_DRILL_SEED={SEED} NIGHT_DRILL_MINUTES={MINUTES:g}")
    with start_postgres() as postgres, open_serve_house(tmp_path) as house:
        lake_url = f"ducklake:{postgres.make_database('night')}?data={tmp_path / 'lake'}"
        suites = write_suites(house, lake_url)
        drill = Drill(house=house, postgres=postgres, lake_url=lake_url, suites=suites, chance=random.Random(SEED))
        began = time.time()
        try:
            drill.run(MINUTES)
        finally:
            print(drill.describe())
            print("\n".join(path.read_text(encoding="utf-8") for path in house.printed))
        n_minutes = int((time.time() - began) // 60) + 2
        for name in (FILE, LAKE):
            runs = drill.list_runs(name)
            assert {run["status"] for run in runs} == {"completed"}
            assert len(runs) <= n_minutes
            assert drill.count_scored(name) == {run["run_id"]: N_SAMPLES for run in runs}
            assert drill.list_doubled(name) == []
        assert drill.list_processes() == []
