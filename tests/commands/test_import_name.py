"""A project that has its own `tasks`, `flows` and `prompts` keeps them, and its bot may print and change the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from cli_house import ROWS, write_dataset
from cli_process import LEFT_OUT, Finished
from prefect_holder import find_home, find_server

# The command as pip lays it beside Python; nothing but the installation says where the product is.
COMMAND = Path(sys.executable).with_name("evalhouse")
BOT = """
import contextlib
import os
import subprocess
import sys
from prompts import SYSTEM
from tasks import greet
import flows.nightly

print("loaded")
subprocess.run(["echo", "from a child"])

def ask(question):
    with contextlib.suppress(ValueError):  # another question has closed it
        print("asked", flush=True)
    os.chdir("/")
    if question.startswith("Who keeps"):
        sys.stdout.close()
    return {"answer": f"{greet()} {SYSTEM} {flows.nightly.HOUR}", "contexts": ["The lamp is green."]}
"""
SUITE = """
dataset = "questions.jsonl"
judge = "lexical"
metrics = ["faithfulness"]

[target]
callable = "bot:ask"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's repository whose folders and files have the names of evalhouse's folders."""
    for folder in ("tasks", "flows", "warehouse"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("def greet():\n    return 'Good evening.'\n")
    (tmp_path / "flows" / "nightly.py").write_text("HOUR = 'It is three.'\n")
    (tmp_path / "prompts.py").write_text("SYSTEM = 'The lamp is green.'\n")
    (tmp_path / "bot.py").write_text(BOT)
    (tmp_path / "nightly.toml").write_text(SUITE)
    write_dataset(tmp_path, [{key: row[key] for key in ("id", "question")} for row in ROWS], "questions.jsonl")
    return tmp_path


def call(project: Path, *command: str) -> Finished:
    environment = {name: value for name, value in os.environ.items() if not name.startswith((*LEFT_OUT, "PYTHON"))}
    done = subprocess.run(
        command,
        cwd=project,
        env={**environment, "PREFECT_HOME": str(find_home()), **find_server()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Finished(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.mark.slow
def test_the_command_asks_a_bot_that_imports_its_own_prompts(project: Path) -> None:
    finished = call(project, str(COMMAND), "run", "nightly.toml", "--json")
    assert finished.status == 0, finished.stderr
    assert finished.document["metrics"]["faithfulness"]["n_scored"] == len(ROWS)
    assert all(printed in finished.stderr for printed in ("loaded", "from a child", "asked"))
    with duckdb.connect(str(project / "evalhouse.duckdb"), read_only=True) as connection:
        answers = connection.execute("select distinct answer from samples").fetchall()
    assert answers == [("Good evening. The lamp is green. It is three.",)]


@pytest.mark.parametrize(
    ("command", "imported", "status"),
    [("/venv/evalhouse", "evalhouse.flows.cli", 2), ("-c", "evalhouse.flows.cli", 1), ("-c", "evalhouse.flows", 1)],
)
def test_windows_gets_one_sentence_and_an_import_can_be_caught(command: str, imported: str, status: int) -> None:
    code = f"""
import sys
sys.platform, sys.argv = 'win32', [{command!r}]
try:
    import {imported}
except ImportError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == "evalhouse runs on Linux and macOS, and not on Windows; install and start it within WSL\n"
