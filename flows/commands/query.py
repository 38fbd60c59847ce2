"""`evalhouse query`: a person's SQL over the warehouse."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import click

from evalhouse.flows.commands.options import WAREHOUSE_URL_OPTION, find_warehouse
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.output import (
    FORMATS,
    lay_table,
    print_notice,
    print_table,
    print_text,
    write_count,
    write_frame,
)
from evalhouse.warehouse.location import parse_location

_MOST_S = 1e6
_EXAMPLE = 'evalhouse query "from run_scores"'
_NO_SQL = (
    f"give the SQL as an argument or with --file, for example: {_EXAMPLE}; "
    "to write it with completion, open the SQL page of `evalhouse ui`"
)
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([KMGT]i?B|%)", re.IGNORECASE)
_COMMENT = re.compile(r"--(\s|.*\n)")


class _SqlCommand(click.Command):
    """A command whose argument may begin with a comment, which a parser of options takes for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, where SQL stands clear of its first comment."""
        return super().parse_args(ctx, [f"\n{arg}" if _COMMENT.match(arg) else arg for arg in args])


def _read_memory(_: click.Context, __: click.Parameter, size: str) -> int:
    """Return the MB of a size such as 2GB, or of a share of the machine's memory such as 50%."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # a container may have less; "max" is not a number
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    bytes_of = {"%": available / 100, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    match = _SIZE.fullmatch(size.strip())
    memory_mb = int(float(match[1]) * bytes_of[match[2].upper().replace("I", "")] / 1e6) if match else 0
    if memory_mb < 1:
        raise click.BadParameter(f"{size!r} is not a memory limit; write for example 2GB, 500MB or 80%")
    return memory_mb


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
    "memory_mb",
    callback=_read_memory,
    default="50%",
    show_default=True,
    metavar="SIZE",
    help="Memory it may use, such as 2GB or a share of the machine's.",
)
@WAREHOUSE_URL_OPTION
def query(
    *,
    sql: str | None,
    path: str | None,
    kind: str | None,
    output: str | None,
    timeout: float,
    memory_mb: int,
    warehouse: str | None,
) -> None:
    r"""Run one SELECT over the warehouse, read-only and without access to other files or the network.

    Start with `evalhouse query "from run_scores"`; `evalhouse query "\d"` lists tables and views, and "\d NAME" the
    columns of one with what they mean. In SQL getvariable('latest') is the id of the newest evaluation and
    getvariable('previous') that of the one before. `table` cuts very long texts at a terminal; the other formats have
    them whole. `evalhouse ui` has a page to write SQL in, with completion and charts.
    """
    from evalhouse.warehouse.sandbox.query_process import answer_apart  # noqa: PLC0415  # imports Polars

    if sql is not None and path is not None:
        raise SettingsError("got SQL as an argument and with --file; give it once")
    if sql == "-" or (sql is None and path in (None, "-")):
        if path is None and sql is None and sys.stdin.isatty():
            raise SettingsError(_NO_SQL)
        sql = sys.stdin.read()
    elif path is not None:
        try:
            sql = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{path} is not UTF-8 text; --file takes a file of SQL") from None
    if sql is None or not sql.strip():
        raise SettingsError(f"the SQL is empty; write one SELECT, for example: {_EXAMPLE}")
    if kind is None:
        suffix = Path(output or "").suffix.removeprefix(".").lower()
        suffix = {"md": "markdown", "ndjson": "jsonl"}.get(suffix, suffix)
        kind = suffix if suffix in FORMATS else "table"
    if kind == "parquet" and output is None:
        raise SettingsError("Parquet is not text; name a file with --output")
    location = parse_location(find_warehouse(warehouse))
    frame = answer_apart(location, sql, timeout_s=timeout, memory_mb=memory_mb, max_bytes=None)
    if output is not None:
        try:
            if kind == "parquet":
                frame.write_parquet(output)
            else:
                Path(output).write_text(write_frame(frame, kind), encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot write {output}: {error.strerror or error}") from None
        print_notice(f"{write_count(frame.height, 'row')} in {output}")
    elif kind == "table" and frame.columns == ["explain_key", "explain_value"]:
        print_text("\n".join(frame["explain_value"]))  # a drawing of many lines
    elif kind == "table":
        print_table(lay_table(frame))
        print_notice(write_count(frame.height, "row"))
    else:
        print_text(write_frame(frame, kind))
