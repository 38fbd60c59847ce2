"""SQL files and the code that reads them: none is missing, none is left over."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from evalhouse.warehouse.queries import read_query

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "warehouse" / "queries"
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.sql"))
_READ = re.compile(r"""read_query\(\s*f?["']([^"']+)["']""")
_NAMED = re.compile(r"""["']([a-z_]+/[a-z_]+)["']""")


def find_all(pattern: re.Pattern[str]) -> set[str]:
    texts = [path.read_text() for folder in ("flows", "tasks", "warehouse") for path in (ROOT / folder).rglob("*.py")]
    return {name for text in texts for name in pattern.findall(text)}


def list_read() -> set[str]:
    """What the code reads, as patterns: of a name that is put together the fixed parts."""
    return {re.sub(r"\{\w+\}", "*", name) for name in find_all(_READ)}


def test_every_query_is_read() -> None:
    patterns = list_read() | find_all(_NAMED)  # a name may be handed to what reads it
    assert [name for name in NAMES if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_every_query_that_is_read_has_its_file() -> None:
    assert [pattern for pattern in list_read() if not any(fnmatch(name, pattern) for name in NAMES)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_query_is_one_statement(name: str) -> None:
    assert ";" not in re.sub(r"--[^\n]*|'[^']*'", "", read_query(name))
