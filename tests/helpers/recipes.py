"""The queries of the cookbook, as they stand there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_GUIDE = Path(__file__).resolve().parents[2] / "flows" / "guides" / "cookbook.md"
_BLOCK = re.compile(r"<!-- cookbook -->\n(.*?)<!-- end -->", re.DOTALL)
_FENCE = re.compile(r"```sql\n-- (?P<title>[^\n]+)\n-- gives (?P<columns>[^\n]+)\n(?P<sql>.*?)```\n", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A query of the cookbook: what its first two lines say it answers and gives, and its SQL."""

    title: str
    columns: list[str]
    sql: str


def read_cookbook() -> str:
    """The part of the guide that holds the queries."""
    (block,) = _BLOCK.findall(_GUIDE.read_text(encoding="utf-8"))
    return str(block)


def read_recipes() -> list[Recipe]:
    """All queries, in their order."""
    return [
        Recipe(title=match["title"], columns=match["columns"].split(", "), sql=match["sql"])
        for match in _FENCE.finditer(read_cookbook())
    ]
