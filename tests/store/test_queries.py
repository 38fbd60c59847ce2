"""SQL files and the code that reads them: each file is used, each named query has a file, and each is one statement."""

import re
from fnmatch import fnmatch
from pathlib import Path

from evalhouse.warehouse.queries import read_query

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "warehouse" / "queries"
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.sql"))
_FETCHED = re.compile(r"""(?:read_query|warehouse\.fetch(?:_rows|_row)?)\(\s*f?["']([^"']+)["']""")
_OF_PAIRS = re.compile(r"""(?:pair|runs|self)\.fetch\(\s*["']([a-z_]+)["']""")
_NAMED = re.compile(r"""["']([a-z_]+/[a-z_]+)["']""")


def find_all(pattern: re.Pattern[str]) -> set[str]:
    texts = [path.read_text() for folder in ("flows", "tasks", "warehouse") for path in (ROOT / folder).rglob("*.py")]
    return {name for text in texts for name in pattern.findall(text)}


def list_fetched() -> set[str]:
    """Return the names that the code asks for; where a name is put together, a pattern of its fixed parts."""
    names = find_all(_FETCHED) | {f"run_pairs/{name}" for name in find_all(_OF_PAIRS)}
    return {re.sub(r"\{\w+\}", "*", name) for name in names}


def test_every_query_is_used() -> None:
    patterns = list_fetched() | find_all(_NAMED)  # a name may be passed to the function that reads it
    patterns |= {"run_pairs/statements", "run_pairs/contexts", "run_pairs/grades"}
    assert [name for name in NAMES if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_every_fetched_query_has_a_file() -> None:
    assert [pattern for pattern in list_fetched() if not any(fnmatch(name, pattern) for name in NAMES)] == []


def test_every_query_is_one_statement() -> None:
    several = [name for name in NAMES if ";" in re.sub(r"--[^\n]*|'[^']*'", "", read_query(name))]
    assert several == [], "a query is one statement without a semicolon"
