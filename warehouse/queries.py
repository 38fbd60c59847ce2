"""SQL of more than a few lines: files in `warehouse/queries`, a folder for each module that reads them."""

from functools import cache
from importlib.resources import files


@cache
def read_query(name: str) -> str:
    """The SQL of `warehouse/queries/NAME.sql`, as `read_query("report/history")`; read once in a process."""
    return files("evalhouse.warehouse").joinpath("queries", f"{name}.sql").read_text(encoding="utf-8")
