"""The queries of the cookbook, as its guide has them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_GUIDE: Final = Path(__file__).parents[2] / "guides" / "cookbook.md"
_FENCE = re.compile(r"```sql\n-- (?P<title>[^\n]+)\n-- gives (?P<columns>[^\n]+)\n(?P<sql>.*?)```\n", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A query of the cookbook: what its first two lines say it answers and gives, and its SQL."""

    title: str
    columns: tuple[str, ...]
    sql: str


@cache
def read_cookbook() -> str:
    """The part of the guide that holds the queries."""
    _, _, after = _GUIDE.read_text(encoding="utf-8").partition("<!-- cookbook -->\n")
    return after.partition("<!-- end -->")[0]


@cache
def read_recipes() -> tuple[Recipe, ...]:
    """All queries, in their order."""
    return tuple(
        Recipe(title=match["title"], columns=tuple(match["columns"].split(", ")), sql=match["sql"])
        for match in _FENCE.finditer(read_cookbook())
    )
