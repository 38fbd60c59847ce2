"""Runs as Python starts them, each in a separate process, because a run settles Prefect's environment for good."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from cli_process import Place
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path) -> Place:
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})


# What a run costs before it judges anything: the server on its way before the dataset is read, no import that a lexical
# run has no use for, and each opening of the warehouse, which takes longer than most of what is read there.
SCRIPT = """
import sys
import duckdb
import polars as pl
import evalhouse.flows.server.local as local
import evalhouse.tasks.datasets.read as read
from evalhouse.flows.start import start_run
from evalhouse.flows.preparing.request import RunRequest
from evalhouse.tasks.settings.run import RunSettings
begun, connect = [], duckdb.connect

def note(place, name):
    function = getattr(place, name)
    def noted(*arguments, **options):
        begun.append(name)
        return function(*arguments, **options)
    setattr(place, name, noted)

note(local.LocalServer, "_start_child"), note(read, "stage_of"), note(duckdb, "connect")
frame = pl.DataFrame({
    "question": ["How deep is the lock?", "Who opens it?", "When?"],
    "answer": ["The lock is 7 metres deep.", "The mayor opens it.", None],
    "ground_truth": ["The lock is 7 metres deep.", "The harbour master opens it.", "At 6."],
    "contexts": [["The lock is 7 metres deep."], ["Fish soup is sold."], ["It opens at 6."]],
})
settings = RunSettings(dataset="three questions", judge="lexical", warehouse="w.duckdb")
outcome = start_run(RunRequest(settings=settings, source=frame))
print(outcome.status, outcome.run.dataset, outcome.run.n_samples)
print(begun.index("_start_child") < begun.index("stage_of"), begun.count("connect"))
print(*sorted({name.partition(".")[0] for name in sys.modules}))
# The file is free when the run has ended, for any mode of opening it.
print(connect("w.duckdb").execute("select count(*) from scores").fetchone()[0] > 0)
"""
UNUSED = {
    "langchain_core",
    "langchain_openai",
    "openai",
    "anthropic",
    "sklearn",
    "scipy",
    "sqlalchemy",
    "torch",
    "openpyxl",
}
MOST_OPENED = 12


@pytest.mark.slow
def test_a_polars_frame_is_a_dataset_and_the_file_is_free_afterwards(place: Place) -> None:
    own = replace(place, own_server=True)
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=own.folder, env=own.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    ended, begun, modules, is_free = process.stdout.splitlines()
    assert (ended, is_free) == ("completed three questions 3", "True")
    is_server_first, n_opened = begun.split()
    assert is_server_first == "True"
    assert int(n_opened) <= MOST_OPENED
    assert UNUSED.isdisjoint(modules.split())
    assert duckdb.connect(str(place.folder / "w.duckdb"), read_only=True).execute("from runs").fetchone()
    warehouse = Warehouse(str(place.folder / "w.duckdb"))
    scores = warehouse.read_rows(
        "select ordinal, value, unscored_reason from scores join run_samples using (run_id, sample_id) "
        "where metric = 'faithfulness' order by ordinal"
    )
    assert [(row["value"], row["unscored_reason"]) for row in scores] == [(1, None), (0, None), (None, "no_answer")]


def test_a_run_that_died_before_its_dataset_was_loaded_is_refused_when_the_dataset_changed(place: Place) -> None:
    dataset = place.folder / "data.jsonl"
    dataset.write_text(json.dumps({"question": "Which ferry?", "answer": "The Alma.", "contexts": ["The Alma sails."]}))
    warehouse = make_warehouse(place.folder)
    settings = RunSettings(dataset=str(dataset), judge="lexical", metrics=("faithfulness",))
    named = {"dataset": str(dataset), "metrics": settings.metrics, "config": settings.model_dump(mode="json")}
    insert_run(warehouse, make_run("20260101-000000-abcd", dataset_hash="another hash", **named))
    ended = place.call("resume", "latest", "--warehouse", "w.duckdb")
    assert ended.status == 2
    assert "has changed since" in ended.stderr
    assert "start a new run" in ended.stderr
