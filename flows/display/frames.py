"""Rows of a query in the formats they are handed out in: a table, CSV, JSON, JSON Lines, Markdown."""

from datetime import datetime
from decimal import Decimal
from typing import IO, TYPE_CHECKING

from evalhouse.flows.display.output import Table, make_table, write_decimal, write_json, write_value

if TYPE_CHECKING:
    import polars as pl

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_FORMULA = r"\A[=+\-@\t\r]"
FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")


def write_frame(frame: "pl.DataFrame", kind: str) -> str:
    """All rows as text, in one of `FORMATS` but Parquet."""
    match kind:
        case "json":
            return write_json(frame.to_dicts()) + "\n"
        case "jsonl":
            return "".join(write_json(row, indent=False) + "\n" for row in frame.iter_rows(named=True))
        case "csv":
            return flatten_lists(frame).write_csv()
        case "markdown":
            return _write_markdown(frame)
        case _:
            return lay_table(frame).to_text()


def write_safe_csv(frame: "pl.DataFrame", file: IO[bytes]) -> None:
    """All rows as CSV for a spreadsheet, which takes a text that begins like a formula for one and runs it: such texts
    get an apostrophe before them. The mark of UTF-8 stands in front, without which Excel takes it for another encoding.
    """
    import polars as pl  # noqa: PLC0415

    flat = flatten_lists(frame).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    texts = pl.col(pl.String)
    harmless = flat.with_columns(pl.when(texts.str.contains(_FORMULA)).then("'" + texts).otherwise(texts).name.keep())
    harmless.rename(lambda name: f"'{name}" if name[:1] in _FORMULA_STARTS else name).write_csv(file, include_bom=True)


def lay_table(frame: "pl.DataFrame") -> Table:
    """A table for people, numbers to the right."""
    columns = [f"#{name}" if frame[name].dtype.is_numeric() else name for name in frame.columns]
    return make_table(columns, [[write_cell(value) for value in row] for row in frame.iter_rows()])


def flatten_lists(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Lists, structs and bytes as JSON text, which is what a CSV cell can hold."""
    import polars as pl  # noqa: PLC0415

    flat = [name for name in frame.columns if frame[name].dtype.is_nested() or frame[name].dtype == pl.Binary]
    return frame.with_columns(
        pl.Series(
            name, [None if value is None else write_cell(value) for value in frame[name].to_list()], dtype=pl.String
        )
        for name in flat
    )


def write_cell(value: object) -> str:
    """A value whole: more digits than the three of a score, and lists as JSON."""
    match value:
        case float():
            return f"{value:.6g}"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds" if value.microsecond else "seconds")
        case list() | dict():
            return write_json(value, indent=False)
        case bytes():
            return value.hex()
        case Decimal():
            return write_decimal(value)
        case _:
            return write_value(value)


def _write_markdown(frame: "pl.DataFrame") -> str:
    rows = [frame.columns, ["---"] * frame.width, *frame.rows()]
    return "".join("| " + " | ".join(_write_markdown_cell(value) for value in row) + " |\n" for row in rows)


def _write_markdown_cell(value: object) -> str:
    return "" if value is None else " ".join(write_cell(value).split()).replace("|", "\\|")
