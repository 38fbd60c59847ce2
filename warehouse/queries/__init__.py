"""The SQL files of this folder: everything that is asked of the warehouse and is longer than a line or two."""

from functools import cache
from importlib.resources import files


@cache
def read_query(name: str) -> str:
    """The text of `NAME.sql`; a name may have a folder, such as `runs/means`."""
    return files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
