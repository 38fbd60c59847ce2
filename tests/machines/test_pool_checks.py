"""What cannot be spread over workers is refused before anything is begun, in words that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import Finished, call_here

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.pools.parts import check_pool
from evalhouse.flows.pools.task_runner import make_task_runner
from evalhouse.tasks.settings.run import RunSettings

LAKE = "ducklake:sqlite:///catalogue.sqlite?data=files"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "EVALHOUSE_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Finished:
    return call_here(capsys, "run", "sample", "--judge", "lexical", *arguments)


def test_a_pool_needs_a_server_and_a_lake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _run(capsys, "--pool", "judges", "--warehouse", "one.duckdb")
    assert refused.status == 2
    assert "set PREFECT_API_URL" in refused.stderr
    assert "ducklake:postgresql://" in refused.stderr
    assert "one.duckdb is one file" in refused.stderr
    assert not (folder / "one.duckdb").exists()


def test_a_task_runner_needs_a_lake_and_no_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _run(capsys, "--task-runner", "prefect_dask:DaskTaskRunner", "--warehouse", "one.duckdb")
    assert refused.status == 2
    assert "--task-runner needs a warehouse that many can write to" in refused.stderr
    assert "PREFECT_API_URL" not in refused.stderr
    check_pool(RunSettings(task_runner="prefect_dask:DaskTaskRunner", warehouse=LAKE))


def test_a_budget_is_of_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    check_pool(RunSettings(pool="judges", warehouse=LAKE))
    with pytest.raises(SettingsError, match="--budget counts what one process spends"):
        check_pool(RunSettings(pool="judges", warehouse=LAKE, budget_usd=5.0))


def test_one_way_to_workers_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _run(capsys, "--pool", "judges", "--task-runner", "a:b", "--warehouse", LAKE)
    assert refused.status == 2
    assert "give one of them" in refused.stderr


def test_a_part_has_at_least_one_sample(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _run(capsys, "--pool", "judges", "--part-size", "0", "--warehouse", LAKE)
    assert (refused.status, "--part-size" in refused.stderr) == (2, True)


def test_without_either_one_process_judges(folder: Path) -> None:
    assert not RunSettings().is_spread
    check_pool(RunSettings(budget_usd=5.0))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_module:factory", "No module named"),
        ("pathlib:NoSuchThing", "NoSuchThing"),
        ("nothing", "module:factory"),
        ("pathlib:Path", "which is not a Prefect task runner"),
    ],
)
def test_what_makes_no_task_runner_is_refused(name: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        make_task_runner(name)


def test_a_task_runner_is_made_by_its_factory() -> None:
    made = make_task_runner("prefect.task_runners:ProcessPoolTaskRunner")
    assert type(made).__name__ == "ProcessPoolTaskRunner"
