"""`[retention]` of a suite: which ages it takes, and what is forgotten after a run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from warehouse_runs import lay_warehouse, make_run

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.serving.suite_runs import forget_old
from evalhouse.warehouse.rows.runs import insert_run, list_runs, now_utc


def _write(folder: Path, retention: str) -> Path:
    path = folder / "nightly.toml"
    path.write_text(f'dataset = "sample"\n[retention]\n{retention}\n', encoding="utf-8")
    return path


def test_old_runs_of_the_suite_alone_are_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warehouse = lay_warehouse(tmp_path / "w.duckdb")
    suite = load_suite(_write(tmp_path, 'texts = "26w"\nscores = "5y"'))
    for run_id, name, days in (("old", "nightly", 200), ("young", "nightly", 100), ("other", "hourly", 200)):
        started_at = now_utc() - timedelta(days=days)
        insert_run(warehouse, make_run(run_id, suite=name, status="completed", started_at=started_at))
    forget_old(suite, str(warehouse.location.path))
    assert warehouse.read("select run_id, rule from forgotten").rows() == [("old", '[retention] texts = "26w"')]
    assert "nightly: texts of 1 run older than 26w were forgotten" in capsys.readouterr().err
    assert len(list_runs(warehouse)) == 3
    forget_old(suite, str(warehouse.location.path))
    assert capsys.readouterr().err == ""


def test_age_of_prefects_history_is_set_beside_the_others(tmp_path: Path) -> None:
    written = [load_suite(_write(tmp_path, line)).retention for line in ('prefect = "never"', 'prefect = "5w"', "")]
    assert [retention.prefect for retention in written if retention] == ["never", "5w", "30d"]
    assert all(retention.scores is retention.texts is None for retention in written if retention)


@pytest.mark.parametrize(
    ("retention", "why"),
    [
        ('texts = "180"', "write a number of days"),
        ('prefect = "29d"', 'at least 30d, or "never"'),
        ('prefect = "soon"', 'at least 30d, or "never"'),
        ('texts = "2y"\nscores = "1y"', "longer"),
        ("days = 3", "days"),
    ],
)
def test_ages_that_make_no_sense_are_refused(tmp_path: Path, retention: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        load_suite(_write(tmp_path, retention))
