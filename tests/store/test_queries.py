"""SQL files and the code that reads them: none is missing, none is left over."""

import re
from pathlib import Path

import pytest

from evalhouse.warehouse.queries import read_query

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "warehouse" / "queries"
_READ = re.compile(r'read_query\(\s*"([^"]+)"')


def list_read() -> set[str]:
    paths = [path for folder in ("flows", "tasks", "warehouse") for path in (ROOT / folder).rglob("*.py")]
    return {name for path in paths if path.name != "queries.py" for name in _READ.findall(path.read_text())}


def test_every_query_has_its_file_and_every_file_is_read() -> None:
    assert {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.sql")} == list_read()


@pytest.mark.parametrize("name", sorted(list_read()))
def test_a_query_is_one_statement(name: str) -> None:
    assert ";" not in re.sub(r"--[^\n]*|'[^']*'", "", read_query(name))
