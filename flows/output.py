"""What commands print: tables for people, JSON for programs, and how numbers are written."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table


def make_console(*, stderr: bool = False) -> Console:
    """A console that wraps to the terminal, or to a generous width when there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 160, soft_wrap=False)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")


def make_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> Table:
    """A plain table; columns whose names start with `#` hold numbers and are set to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left")
    for row in rows:
        table.add_row(*(_write(value) for value in row))
    return table


def _write(value: object) -> str:
    # Square brackets in a text would be read as markup.
    return write_value(value).replace("[", r"\[")


def write_value(value: object) -> str:
    """A value as a person reads it; a missing one is a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return write_number(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, list | tuple):
        return ", ".join(map(write_value, value))
    return str(value)


def write_number(value: float) -> str:
    """Three decimals, as scores are read."""
    return f"{value:.3f}"


def write_interval(low: float | None, high: float | None) -> str:
    """An interval, or a dash where there is none."""
    return "–" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def write_dollars(value: float | None) -> str:
    """Dollars with as many digits as small sums need."""
    if value is None:
        return "unknown"
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


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
