"""`evalhouse query`: a person's SQL over the warehouse, given at once or at a prompt."""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import WAREHOUSE_URL_OPTION, find_warehouse
from evalhouse.flows.display.output import (
    Table,
    make_table,
    print_notice,
    print_table,
    print_text,
    write_decimal,
    write_json,
    write_value,
)
from evalhouse.flows.errors import INTERRUPTED, SettingsError
from evalhouse.warehouse.location import Location, parse_location

if TYPE_CHECKING:
    import polars as pl

FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")
_MOST_S = 1e6
_EXAMPLE = 'evalhouse query "from run_scores"'
_COMMENT = re.compile(r"--(\s|.*\n)")
_DESCRIBE = re.compile(r'\s*\\d(?:\s+"?([^\s;"]+)"?)?\s*;?\s*')


class _SqlCommand(click.Command):
    """A command whose argument may begin with a comment, which a parser of options takes for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, where SQL stands clear of its first comment."""
        return super().parse_args(ctx, [f"\n{arg}" if _COMMENT.match(arg) else arg for arg in args])


@click.command(cls=_SqlCommand)
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from a file, or from standard input with `-`.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the ending of --output, else table.")
@click.option("-o", "--output", metavar="FILE", help="Write the result there. Parquet needs it.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=_MOST_S),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Stop after this many seconds.",
)
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory it may use, such as 2GB. Default: DuckDB's own, 80 % of the machine's.",
)
@WAREHOUSE_URL_OPTION
def query(
    *,
    sql: str | None,
    path: str | None,
    kind: str | None,
    output: str | None,
    timeout: float,
    memory_limit: str | None,
    warehouse: str | None,
) -> None:
    r"""Run one SELECT over the warehouse, read-only and without access to other files or the network.

    Start with `evalhouse query "from run_scores"`; `evalhouse query "\d"` lists tables and views, and "\d NAME" the
    columns of one with what they mean. In SQL getvariable('latest') is the id of the newest evaluation and
    getvariable('previous') that of the one before. Without SQL, a terminal shows a prompt. `table` cuts very long texts
    there; the other formats have them whole.
    """
    at_prompt = sql is None and path is None and sys.stdin.isatty() and sys.stdout.isatty()
    text = "" if at_prompt else _read_sql(sql, path)
    kind = kind or _find_format(output)
    if kind == "parquet" and output is None:
        raise SettingsError("Parquet is not text; name a file with --output")
    if at_prompt and output is not None:
        raise SettingsError(f"--output takes the result of one query; give the SQL as well, for example: {_EXAMPLE}")
    location = parse_location(find_warehouse(warehouse))
    find = partial(_find_rows, location, timeout_s=timeout, memory_limit=memory_limit)
    show = partial(_show_rows, kind=kind, output=output)
    if at_prompt:
        from evalhouse.flows.display.sql_prompt import hold_prompt  # noqa: PLC0415  # the prompt's library, for those who want one
        from evalhouse.warehouse.sandbox.catalog import read_catalog  # noqa: PLC0415

        hold_prompt(read_catalog(location), find=lambda statement, stop: find(statement, stop=stop), show=show)
        return
    with _ending_on_interrupt():
        frame = find(text)
    show(frame)


def _find_rows(
    location: Location,
    text: str,
    *,
    timeout_s: float,
    memory_limit: str | None,
    stop: threading.Event | None = None,
) -> "pl.DataFrame":
    r"""The rows of a SELECT, or of `\d`."""
    from evalhouse.warehouse.sandbox.query import run_query  # noqa: PLC0415

    if match := _DESCRIBE.fullmatch(text):
        return _describe(location, match[1])
    return _shrink_sums(run_query(location, text, timeout_s=timeout_s, memory_limit=memory_limit, stop=stop))


def _describe(location: Location, name: str | None) -> "pl.DataFrame":
    """A row per table and view, or per column of the one that is named, each with its comment."""
    import polars as pl  # noqa: PLC0415

    from evalhouse.warehouse.sandbox.catalog import read_catalog  # noqa: PLC0415

    catalog = read_catalog(location)
    if name is None:
        columns = ["name", "kind", "comment"]
        rows = [[entry.name, entry.kind, entry.comment] for entry in catalog.relations]
    else:
        columns = ["column", "type", "comment"]
        rows = [[entry.name, entry.type, entry.comment] for entry in catalog.find(name).columns]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")


def _show_rows(frame: "pl.DataFrame", *, kind: str, output: str | None) -> None:
    if output is not None:
        _write_frame(frame, kind, Path(output))
    elif kind == "table" and frame.columns == ["explain_key", "explain_value"]:
        print_text("\n".join(frame["explain_value"]))  # a drawing of many lines
    elif kind == "table":
        print_table(_to_table(frame))
        print_notice(f"{frame.height:,} row{'' if frame.height == 1 else 's'}")
    else:
        print_text(_to_text(frame, kind))


@contextmanager
def _ending_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once. DuckDB does not return to Python, and so to Python's own handler, before it
    has all rows; a reading process may end at any time."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def wait() -> None:
        while (number := os.read(reading, 1)[0]) != 0:
            if number == signal.SIGINT:
                os.write(sys.stderr.fileno(), b"interrupted\n")
                os._exit(INTERRUPTED)

    thread = threading.Thread(target=wait, name="evalhouse-interrupt", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")
        thread.join()
        os.close(reading)
        os.close(writing)


def _read_sql(sql: str | None, path: str | None) -> str:
    if sql is not None and path is not None:
        raise SettingsError("got SQL as an argument and with --file; give it once")
    if sql == "-" or (sql is None and path in (None, "-")):
        if path is None and sql is None and sys.stdin.isatty():
            raise SettingsError(f"give the SQL as an argument or with --file, for example: {_EXAMPLE}")
        text = sys.stdin.read()
    else:
        text = sql if sql is not None else _read_file(Path(str(path)))
    if not text.strip():
        raise SettingsError(f"the SQL is empty; write one SELECT, for example: {_EXAMPLE}")
    return text


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; --file takes a file of SQL") from None


def _find_format(output: str | None) -> str:
    """The format a file's name asks for, or a table."""
    suffix = Path(output or "").suffix.removeprefix(".").lower()
    suffix = {"md": "markdown", "ndjson": "jsonl"}.get(suffix, suffix)
    return suffix if suffix in FORMATS else "table"


def _write_frame(frame: "pl.DataFrame", kind: str, path: Path) -> None:
    try:
        if kind == "parquet":
            frame.write_parquet(path)
        else:
            path.write_text(_to_text(frame, kind), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror or error}") from None
    print_notice(f"{frame.height:,} row{'' if frame.height == 1 else 's'} in {path}")


def _to_table(frame: "pl.DataFrame") -> Table:
    columns = [f"#{name}" if frame[name].dtype.is_numeric() else name for name in frame.columns]
    return make_table(columns, [[_to_cell(value) for value in row] for row in frame.iter_rows()])


def _to_text(frame: "pl.DataFrame", kind: str) -> str:
    match kind:
        case "json":
            return write_json(frame.to_dicts()) + "\n"
        case "jsonl":
            return "".join(write_json(row, indent=False) + "\n" for row in frame.iter_rows(named=True))
        case "csv":
            return _flatten_lists(frame).write_csv()
        case "markdown":
            return _to_markdown(frame)
        case _:
            return _to_table(frame).to_text()


def _shrink_sums(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Sums of whole numbers as whole numbers: DuckDB gives 128 bits for them, which come as decimals."""
    import polars as pl  # noqa: PLC0415

    sums = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Decimal) and dtype.scale == 0]
    whole = {name: frame[name].cast(pl.Int64, strict=False) for name in sums}
    fitting = [series for name, series in whole.items() if series.null_count() == frame[name].null_count()]
    return frame.with_columns(fitting)


def _flatten_lists(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Lists, structs and bytes as JSON text, which is what a CSV cell can hold."""
    import polars as pl  # noqa: PLC0415

    flat = [name for name in frame.columns if frame[name].dtype.is_nested() or frame[name].dtype == pl.Binary]
    return frame.with_columns(
        pl.Series(
            name, [None if value is None else _to_cell(value) for value in frame[name].to_list()], dtype=pl.String
        )
        for name in flat
    )


def _to_markdown(frame: "pl.DataFrame") -> str:
    rows = [frame.columns, ["---"] * frame.width, *frame.rows()]
    return "".join("| " + " | ".join(_to_markdown_cell(value) for value in row) + " |\n" for row in rows)


def _to_markdown_cell(value: object) -> str:
    return "" if value is None else " ".join(_to_cell(value).split()).replace("|", "\\|")


def _to_cell(value: object) -> str:
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
