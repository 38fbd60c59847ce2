"""`evalhouse query`: a person's SQL over the warehouse."""

import sys
from pathlib import Path

import click
import orjson
import polars as pl

from flows.command_run import WAREHOUSE_OPTION
from flows.output import make_console, make_table, print_json
from flows.settings import SettingsError
from warehouse.location import DEFAULT_URL, parse_location
from warehouse.query import run_query

FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")


@click.command()
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from a file, or from standard input with `-`.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write the result there. Parquet needs it.")
@click.option("--timeout", type=float, default=300.0, show_default=True, metavar="S", help="Stop after this many seconds.")
@click.option("--memory-limit", metavar="SIZE", help="For example 2GB. Default: DuckDB's own, 80 % of the machine.")
@WAREHOUSE_OPTION
def query(
    sql: str | None,
    path: str | None,
    kind: str,
    output: str | None,
    timeout: float,
    memory_limit: str | None,
    warehouse: str | None,
) -> None:
    """Run one SELECT over the warehouse, read-only and with no way to other files or the network.

    Start with `evalhouse query "from run_scores"`; `evalhouse query "show tables"` lists what there is.
    """
    text = _read_sql(sql, path)
    frame = run_query(parse_location(warehouse or DEFAULT_URL), text, timeout_s=timeout, memory_limit=memory_limit)
    if output is None:
        _print_frame(frame, kind)
    else:
        _write_frame(frame, kind, Path(output))


def _read_sql(sql: str | None, path: str | None) -> str:
    if (sql is None) == (path is None) and not (sql is None and not sys.stdin.isatty()):
        raise SettingsError('give the SQL as an argument or with --file, for example: evalhouse query "from run_scores"')
    if sql is not None:
        return sql
    if path in (None, "-"):
        return sys.stdin.read()
    try:
        return Path(str(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None


def _print_frame(frame: pl.DataFrame, kind: str) -> None:
    if kind == "parquet":
        raise SettingsError("Parquet is no text; name a file with --output")
    if kind == "table":
        columns = [f"#{name}" if frame[name].dtype.is_numeric() else name for name in frame.columns]
        make_console().print(make_table(columns, frame.rows()))
    elif kind == "json":
        print_json(frame.to_dicts())
    else:
        click.echo(_to_text(frame, kind), nl=False)


def _write_frame(frame: pl.DataFrame, kind: str, path: Path) -> None:
    try:
        if kind == "parquet":
            frame.write_parquet(path)
        else:
            path.write_text(_to_text(frame, kind), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"{frame.height} rows in {path}", err=True)


def _to_text(frame: pl.DataFrame, kind: str) -> str:
    if kind == "jsonl":
        return frame.write_ndjson()
    if kind == "json":
        return frame.write_json() + "\n"
    if kind == "csv":
        return _flatten_lists(frame).write_csv()
    return _to_markdown(frame)


def _flatten_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """Lists and structs as JSON text, which is what a CSV cell can hold."""
    nested = [name for name in frame.columns if frame[name].dtype.is_nested()]
    return frame.with_columns(pl.Series(name, [_to_json(value) for value in frame[name].to_list()]) for name in nested)


def _to_json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value, default=str).decode()


def _to_markdown(frame: pl.DataFrame) -> str:
    rows = [frame.columns, ["---"] * frame.width, *frame.rows()]
    return "".join("| " + " | ".join(_to_cell(value) for value in row) + " |\n" for row in rows)


def _to_cell(value: object) -> str:
    return "" if value is None else " ".join(str(value).split()).replace("|", "\\|")
