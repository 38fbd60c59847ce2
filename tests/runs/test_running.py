"""Runs as Python starts them, each in a separate process, because a run settles Prefect's environment for good."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_process import Place
from warehouse_processes import make_warehouse

from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.runs import RunRow, insert_run
from evalhouse.warehouse.store import Warehouse

Read = Callable[[str], list[dict[str, Any]]]

FRAME = """
import polars as pl
frame = pl.DataFrame({
    "question": ["How deep is the lock?", "Who opens it?", "When?"],
    "answer": ["The lock is 7 metres deep.", "The mayor opens it.", None],
    "ground_truth": ["The lock is 7 metres deep.", "The harbour master opens it.", "At 6."],
    "contexts": [["The lock is 7 metres deep."], ["Fish soup is sold."], ["It opens at 6."]],
})
"""
START = """
from evalhouse.flows.evaluate import start_run
from evalhouse.flows.preparing.request import RunRequest
from evalhouse.tasks.settings.run import RunSettings
settings = RunSettings(dataset="three questions", judge="lexical", warehouse="w.duckdb")
"""


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path) -> Place:
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})


def run_script(place: Place, script: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


# What a run costs before it judges anything: the server on its way before the dataset is read, no import that a lexical
# run has no use for, and each opening of the warehouse, which takes longer than most of what is read there.
COUNTED = """
import sys
import duckdb
import evalhouse.flows.server.local as local
import evalhouse.tasks.datasets.read as read
begun, connect = [], duckdb.connect

def note(place, name):
    function = getattr(place, name)
    def noted(*arguments, **options):
        begun.append(name)
        return function(*arguments, **options)
    setattr(place, name, noted)

note(local.LocalServer, "_start_child"), note(read, "stage_of"), note(duckdb, "connect")
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


def test_a_polars_frame_is_a_dataset_and_the_file_is_free_afterwards(place: Place) -> None:
    end = textwrap.dedent("""
        outcome = start_run(RunRequest(settings=settings, source=frame))
        print(outcome.status, outcome.run.dataset, outcome.run.n_samples)
        print(begun.index("_start_child") < begun.index("stage_of"), begun.count("connect"))
        print(*sorted({name.partition(".")[0] for name in sys.modules}))
        # The file is free when the run has ended, for any mode of opening it.
        print(connect("w.duckdb").execute("select count(*) from scores").fetchone()[0] > 0)
    """)
    own = replace(place, own_server=True)
    ended, begun, modules, is_free = run_script(own, COUNTED + FRAME + START + end)
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


@pytest.mark.slow  # `test_held_warehouse.py` has a run whose file is kept by another program
def test_a_reader_that_keeps_the_file_for_a_while_does_not_stop_a_run(place: Place) -> None:
    """Verdicts go to the spool while the notebook is open and are in the warehouse at the end."""
    end = textwrap.dedent("""
        import contextlib, subprocess, sys, threading
        reader = (
            "import duckdb, sys; c = duckdb.connect('w.duckdb', read_only=True);"
            "print('open', flush=True); sys.stdin.read()"
        )
        pipe = subprocess.PIPE
        notebooks = []
        @contextlib.contextmanager
        def watch(live_run):
            # The notebook opens as soon as the samples are loaded, and stays a second longer than a write has patience.
            open_shard = live_run.open_shard
            async def open_and_read(*arguments):
                shard = await open_shard(*arguments)
                notebook = subprocess.Popen([sys.executable, "-c", reader], stdin=pipe, stdout=pipe)
                assert notebook.stdout.readline() == b"open\\n"
                notebooks.append(notebook)
                return shard
            live_run.open_shard = open_and_read
            append = live_run.warehouse.append
            def append_and_tell(batch):
                is_written = append(batch, patience_s=0.5)
                print("written" if is_written else "spooled")
                if not is_written:
                    threading.Timer(1.0, notebooks[0].stdin.close).start()
            live_run.warehouse.append = append_and_tell
            yield
        outcome = start_run(RunRequest(settings=settings, source=frame), watch=watch)
        print(outcome.status)
    """)
    # Its verdicts; the prompts came in with its samples.
    assert run_script(place, FRAME + START + end) == ["spooled", "completed"]
    warehouse = Warehouse(str(place.folder / "w.duckdb"))
    assert warehouse.read("select count(*) as n from outcomes where step = 'classify'")["n"][0] == 3
    assert list((place.folder / "w.duckdb.spool").iterdir()) == []
    assert warehouse.read("select count(*) as n from llm_calls where status = 'ok'")["n"][0] > 5


def make_run(dataset: Path, content_hash: str) -> RunRow:
    settings = RunSettings(dataset=str(dataset), judge="lexical", metrics=("faithfulness",))
    return RunRow(
        run_id="20260101-000000-abcd", suite=None, label=None, href=None, tags=(), dataset=str(dataset),
        dataset_hash=content_hash, judge="lexical", embeddings=None, language="en", metrics=("faithfulness",),
        trigger="manual", kb_name=None, kb_version=None, flow_run_id=None, status="running",
        started_at=datetime(2026, 1, 1), finished_at=None, n_samples=1, config=settings.model_dump(mode="json"),
    )  # fmt: skip


def test_a_run_that_died_before_its_dataset_was_loaded_is_refused_when_the_dataset_changed(place: Place) -> None:
    dataset = place.folder / "data.jsonl"
    dataset.write_text(json.dumps({"question": "Which ferry?", "answer": "The Alma.", "contexts": ["The Alma sails."]}))
    warehouse = make_warehouse(place.folder)
    insert_run(warehouse, make_run(dataset, "another hash"))
    ended = place.call("resume", "latest", "--warehouse", "w.duckdb")
    assert ended.status == 2
    assert "has changed since" in ended.stderr
    assert "start a new run" in ended.stderr
