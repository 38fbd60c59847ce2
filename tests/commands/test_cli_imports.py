"""Commands that only read answer at once: they import no Prefect and no LangChain, and help imports almost nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_house import House

_LISTING = """
import json, sys
from evalhouse.flows.cli import main
try:
    main(sys.argv[2:])
except SystemExit as ended:
    status = ended.code
names = {name.split(".")[0] for name in sys.modules}
with open(sys.argv[1], "w") as file:
    json.dump({"status": status, "modules": sorted(names)}, file)
"""
HEAVY = {"prefect", "langchain_core", "langchain_openai", "openai", "sklearn", "fastapi", "sqlalchemy"}
LIBRARIES = {"duckdb", "polars", "pydantic", "rich", "orjson", "yaml", "pyarrow", "numpy"}


def list_modules(house: House, tmp_path: Path, *arguments: str) -> set[str]:
    report = tmp_path / "modules.json"
    subprocess.run(
        [sys.executable, "-c", _LISTING, str(report), *arguments],
        cwd=house.place.folder,
        env=house.place.environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    found = json.loads(report.read_text())
    assert found["status"] == 0
    return set(found["modules"])


@pytest.mark.parametrize(
    "arguments",
    [
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
    ],
    ids=lambda arguments: arguments[0],
)
def test_reading_imports_nothing_that_runs(house: House, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert not HEAVY & list_modules(house, tmp_path, *arguments)


def test_help_imports_almost_nothing(house: House, tmp_path: Path) -> None:
    assert not (HEAVY | LIBRARIES) & list_modules(house, tmp_path, "--help")


def test_reading_needs_no_settings_of_runs(house: House, tmp_path: Path) -> None:
    assert "pydantic" not in list_modules(house, tmp_path, "query", "select 1")
