"""Commands that only read answer at once: they import no Prefect and no LangChain, and help imports almost nothing.

All are called in one process, one after the other, and what is loaded is listed after each: a module that none of them
may import cannot hide behind the command before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest
from cli_house import House

_LISTING = """
import contextlib, io, json, sys
from evalhouse.flows.cli import main
listed = []
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as ended:
            status = ended.code
    listed.append({"status": status, "modules": sorted({name.split(".")[0] for name in sys.modules})})
with open(sys.argv[1], "w") as file:
    json.dump(listed, file)
"""
HEAVY = {"prefect", "langchain_core", "langchain_openai", "openai", "sklearn", "fastapi", "sqlalchemy"}
LIBRARIES = {"duckdb", "polars", "pydantic", "rich", "orjson", "yaml", "pyarrow", "numpy"}
HELP = ("--help",)
QUERIES = (("query", "select 1 as one"), ("query", "\\d runs"))
READING = (
    ("query", "from run_scores"),
    ("runs",),
    ("show", "latest"),
    ("compare", "previous", "latest"),
    ("diagnose", "latest"),
    ("gate", "latest", "--max-cost", "1"),
    ("lineage", "latest", "tide-1", "factual_f1"),
    ("prompts", "list"),
    ("run", "--help"),
    ("serve", "--help"),
    ("kb-updated", "--help"),
    ("benchmark", "--help"),
    ("review", "--help"),
    ("warehouse", "--help"),
)
Modules = Mapping[tuple[str, ...], set[str]]


@pytest.fixture(scope="module")
def modules(house: House, tmp_path_factory: pytest.TempPathFactory) -> Modules:
    """Modules that are loaded after each command, the lightest command first."""
    report = tmp_path_factory.mktemp("modules") / "modules.json"
    called = (HELP, *QUERIES, *READING)
    subprocess.run(
        [sys.executable, "-c", _LISTING, str(report)],
        cwd=house.place.folder,
        env=house.place.environment(),
        input=json.dumps(called),
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    listed = json.loads(report.read_text())
    assert [entry["status"] for entry in listed] == [0] * len(called)
    return {arguments: set(entry["modules"]) for arguments, entry in zip(called, listed, strict=True)}


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_reading_imports_nothing_that_runs(modules: Modules, arguments: tuple[str, ...]) -> None:
    assert not HEAVY & modules[arguments]


@pytest.mark.parametrize("arguments", [("runs",), ("show", "latest")], ids=lambda arguments: arguments[0])
def test_runs_and_scores_are_shown_without_the_statistics(modules: Modules, arguments: tuple[str, ...]) -> None:
    assert "scipy" not in modules[arguments]


def test_help_imports_almost_nothing(modules: Modules) -> None:
    assert not (HEAVY | LIBRARIES) & modules[HELP]


@pytest.mark.parametrize("arguments", QUERIES, ids=lambda arguments: arguments[1])
def test_a_query_needs_no_settings(modules: Modules, arguments: tuple[str, ...]) -> None:
    assert "pydantic" not in modules[arguments]
