"""Prefect reads its settings when it is imported, so nothing may import it before a command has started its server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOAD_ALL = """
import importlib
import sys
import click
from evalhouse.flows.cli import COMMANDS, evalhouse
context = click.Context(evalhouse)
for name in COMMANDS:
    assert evalhouse.get_command(context, name).name == name
for name in ("serving.serve", "serving.suite_runs", "run.open_run", "run.estimate", "preparing.request"):
    importlib.import_module(f"evalhouse.flows.{name}")
print(sorted(name for name in sys.modules if name == "prefect" or name.startswith("prefect.settings")))
"""


def test_no_command_and_no_module_before_the_run_imports_prefect() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD_ALL], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


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
    assert len(loaded["all"]) <= 61, loaded["all"]
    assert len(loaded["before"]) <= 51, loaded["before"]
    assert "evalhouse.flows.evaluation" in loaded["before"], "the flow itself is counted before it begins"
    assert loaded["heavy"] == [], "each of these libraries takes 15 to 50 MB of memory"
