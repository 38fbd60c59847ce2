"""What commands print: tables for people, JSON for programs, and how numbers are written.

Most texts shown here come from datasets and models, so none of them is trusted: control characters, which could
recolour or rewrite a terminal, are shown as escapes, and nothing is read as markup. At a terminal a table is fitted to
its width; in a pipe every row is one line.
"""

import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import click
import orjson
from rich.console import Console

from evalhouse.flows.display.table import Table

# Wider than any table: in a pipe nothing is wrapped.
_NO_WRAP = 1_000_000
_KEPT_CONTROLS = "\n\t"


def make_console(*, stderr: bool = False) -> Console:
    """A console that fits to the terminal, and wraps nothing when there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(
        file=stream, highlight=False, markup=False, emoji=False, width=None if stream.isatty() else _NO_WRAP
    )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line what to do when nobody reads any more; Rich would exit with an error."""
        raise BrokenPipeError


def print_line(text: str = "", *, bold: bool = False) -> None:
    """A line of our own on standard output. The terminal wraps it, so that a command in it can be copied whole."""
    cleaned = clean_text(text)
    click.echo(click.style(cleaned, bold=True) if bold else cleaned)


def print_table(table: Table) -> None:
    """A table on standard output, fitted to the terminal."""
    make_console().print(table)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print_text(write_json(value) + "\n")


def print_text(text: str) -> None:
    """A text on standard output: as it is into a pipe or file, without its control characters to a terminal."""
    sys.stdout.write(clean_text(text) if sys.stdout.isatty() else text)


def print_notice(text: str) -> None:
    """A sentence for the person at the terminal, on standard error."""
    sys.stdout.flush()
    sys.stderr.write(clean_text(text) + "\n")


def write_json(value: object, *, indent: bool = True) -> str:
    """JSON; what it has no form for (bytes, a number beyond 64 bits) becomes a string."""
    option = orjson.OPT_INDENT_2 if indent else 0
    try:
        return orjson.dumps(value, option=option, default=_write_foreign).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_without_large_numbers(value), option=option, default=_write_foreign).decode()


def clean_text(text: str) -> str:
    """A text whose control characters and direction marks are written out as escapes; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        character if character in _KEPT_CONTROLS or not _is_control(character) else _escape(character)
        for character in text
    )


def make_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> Table:
    """A plain table; columns whose names start with `#` hold numbers and are set to the right."""
    return Table(
        columns=tuple(_write_cell(name.removeprefix("#")) for name in columns),
        right=tuple(name.startswith("#") for name in columns),
        rows=tuple(tuple(_write_cell(value) for value in row) for row in rows),
        title=title,
    )


def write_value(value: object) -> str:
    """A value as a person reads it; a missing one is a dash."""
    match value:
        case None:
            return "–"
        case bool():
            return "true" if value else "false"
        case float():
            return write_number(value)
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case list() | tuple():
            return ", ".join(map(write_value, value))
        case _:
            return str(value)


def write_number(value: float) -> str:
    """Three decimals, as scores are read."""
    return f"{value:.3f}"


def write_decimal(value: Decimal) -> str:
    """Every digit: a whole number beyond 64 bits stays one."""
    return str(int(value)) if _has_no_places(value) else str(value)


def write_interval(low: float | None, high: float | None) -> str:
    """An interval, or a dash where there is none."""
    return "–" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def write_dollars(value: float | None) -> str:
    """Dollars with as many digits as small sums need."""
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def shorten(text: str | None, most: int = 80) -> str:
    """A text on one line, cut with an ellipsis."""
    flat = " ".join((text or "").split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def metrics_table(rows: Sequence[Mapping[str, Any]], order: Sequence[str] = ()) -> Table:
    """Rows of `run_scores` as a table, in the given order of metrics."""
    places = {metric: place for place, metric in enumerate(order)}
    rows = sorted(rows, key=lambda row: (places.get(row["metric"], len(places)), row["metric"]))
    return make_table(
        ["metric", "#mean", "95 % interval", "#scored", "#unscored"],
        [
            [
                row["metric"],
                row["mean"],
                write_interval(row["ci_low"], row["ci_high"]),
                row["n_scored"],
                row["n_unscored"],
            ]
            for row in rows
        ],
    )


def _write_cell(value: object) -> str:
    return clean_text(" ".join(write_value(value).split()))


def _is_control(character: str) -> bool:
    # Cc are control characters, of which ESC and U+009B begin terminal sequences; the others turn a text around.
    return (
        unicodedata.category(character) == "Cc" or character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


def _write_foreign(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            return write_decimal(value) if _has_no_places(value) else float(value)
        case _:
            return str(value)


def _has_no_places(value: Decimal) -> bool:
    """Whether it is of a type of whole numbers: 1.00 is not."""
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= 0


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _without_large_numbers(value: object) -> object:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _without_large_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_large_numbers(item) for item in value]
    return value
