"""`evalhouse resume` of a run that made, refreshed or checked a set: its command again, with its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import call_here
from live_runs import point_to
from port_answers import port_endpoint
from port_base import write_base

from evalhouse.flows.server.local import LocalServer
from evalhouse.tasks.testsets.questions import load_set
from evalhouse.warehouse.store import Warehouse

Capture = pytest.CaptureFixture[str]
N = 4


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a test set needs no Prefect server."""
    monkeypatch.delattr(LocalServer, "start")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The port's handbook, and prices by which a set costs some dollars."""
    write_base(tmp_path / "docs", version=1)
    (tmp_path / "prices.yaml").write_text("m: [100, 100]\n", encoding="utf-8")
    return tmp_path


def list_command(folder: Path, *options: str) -> tuple[str, ...]:
    written = ("-n", str(N), "--kinds", "fact=1", "-o", str(folder / "set.jsonl"))
    asking = ("--judge", "openai:m", "--embeddings", "hashing", "--prices", str(folder / "prices.yaml"), "--seed", "3")
    return ("testset", "make", str(folder / "docs"), *written, *asking, *options)


def test_run_stopped_by_its_budget_resumes_and_pays_nothing_twice(folder: Path, capsys: Capture) -> None:
    where = ("--warehouse", str(folder / "own.duckdb"))
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        stopped = call_here(capsys, *list_command(folder, "--budget", "0.5", *where, "--json"))
        run_id = stopped.document["run_id"]
        assert (stopped.status, stopped.document["n_questions"] < N) == (3, True)
        spent = call_here(capsys, "resume", run_id, "--budget", "0.1", *where)
        odd = call_here(capsys, "resume", run_id, *where, "--pool", "north")
        (folder / "docs").rename(folder / "elsewhere")
        gone = call_here(capsys, "resume", run_id, *where)
        (folder / "elsewhere").rename(folder / "docs")
        done = call_here(capsys, "resume", run_id, "--budget", "1000", *where, "--json")
    assert "--pool: a run of kind testset has no such setting" in odd.stderr
    named = f"cannot be resumed: {folder / 'docs'}, which its command names, does not exist"
    assert (gone.status, named in gone.stderr) == (2, True)
    assert (spent.status, "its budget is 0.1, so nothing was asked; resume with a higher one" in spent.stderr) == (
        2,
        True,
    )
    assert (done.status, done.document["n_questions"]) == (0, N), done.stderr
    assert f"run {run_id} is resumed with: evalhouse testset make {folder / 'docs'} -n {N}" in done.stderr
    assert done.document["run_id"] != run_id
    assert load_set(folder / "set.jsonl").set_hash == done.document["set_hash"]
    assert load_set(folder / "set.jsonl").manifest.asked["seed"] == 3
    rows = Warehouse(str(folder / "own.duckdb")).read_rows(
        "select count(*) as n, count(distinct request_hash) as n_different from llm_calls where status = 'ok'"
    )
    assert rows[0]["n"] == rows[0]["n_different"] > N


def test_a_check_names_its_command_and_one_of_earlier_says_that_it_has_none(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "set.jsonl").write_text('{"query": "When?", "ground_truth": "At six."}\n', encoding="utf-8")
    where = ("--warehouse", str(tmp_path / "own.duckdb"))
    check = ("testset", "check", str(tmp_path / "set.jsonl"), "--map", "question=query", *where)
    run_id = call_here(capsys, *check, "--json").document["run_id"]
    warehouse = Warehouse(str(tmp_path / "own.duckdb"))
    config = warehouse.read_rows("select config from runs")[0]["config"]
    assert json.loads(config)["testset"]["command"] == " ".join(["evalhouse", *check, "--json"])
    for change, message in (
        ("status = 'incomplete'", "is resumed with"),
        ("config = '{}'", "has no command on record"),
    ):
        with warehouse.writing(run_id=run_id) as connection:
            connection.execute(f"update runs set {change} where run_id = ?", [run_id])
        assert message in call_here(capsys, "resume", run_id, *where).stderr
