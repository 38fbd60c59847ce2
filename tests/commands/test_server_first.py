"""Prefect reads its settings when it is imported, so nothing may import it before a command has started its server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evalhouse.flows.cli import COMMANDS

LOAD_COMMAND = """
import sys
import click
from evalhouse.flows.cli import evalhouse
context = click.Context(evalhouse)
for name in sys.argv[1:]:
    assert evalhouse.get_command(context, name) is not None
print(sorted(name for name in sys.modules if name == "prefect" or name.startswith("prefect.settings")))
"""


def test_no_command_imports_prefect_before_its_server_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_COMMAND, *COMMANDS], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["serving.suite_runs", "run.open_run", "run.estimate", "preparing.request"])
def test_no_module_before_the_run_imports_prefect(module: str) -> None:
    text = (
        f"import sys, importlib; importlib.import_module('evalhouse.flows.{module}'); print('prefect' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_a_one_row_run_loads_few_files_and_some_of_them_after_its_flow_has_begun() -> None:
    shape = Path(__file__).parents[1] / "benchmarks" / "shape.py"
    counting = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import shape; print(json.dumps(shape.count_imports()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", counting, str(shape.parent)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert len(loaded["all"]) <= 60, loaded["all"]
    assert len(loaded["before"]) <= 50, loaded["before"]
    assert "evalhouse.flows.evaluation" in loaded["before"], "the flow itself is counted before it begins"
    assert loaded["heavy"] == [], "each of these libraries takes 15 to 50 MB of memory"
