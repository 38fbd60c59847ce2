"""The output of commands: tables for people, JSON for programs, and the format of numbers.

Most texts come from datasets and models, so none of them is trusted: control characters, which could recolour or
rewrite a terminal, are shown as escapes, and nothing is read as markup. A table is fitted to the terminal's width; in a
pipe to 100 cells, or to the variable COLUMNS.
"""

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import click
import orjson
from click.core import ParameterSource
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from evalhouse.warehouse.messages import clean_text, cut

if TYPE_CHECKING:
    import polars as pl


# Lines in a pipe, where no COLUMNS says otherwise: what a log or a pager shows without scrolling.
_PIPE_WIDTH = 100
_GAP = 2
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
# What Markdown would take for markup.
_MARKUP = "\\`*_{}[]<>()#+!|~"
# The reason for a support by the fused plan.
_ONLY_NAMES = re.compile(r"[CT]\d+(?:(?:, | \+ )[CT]\d+)*")
# A text column is not made narrower than this; numbers are never wrapped.
_MIN_WIDTH = 12
# Letters of a cell that is wrapped, so that no text fills the screen.
_MAX_CELL = 400
# Rich takes a millisecond a row: a longer result of a query is printed unwrapped.
_MAX_WRAPPED_ROWS = 500
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_LEFT_TO_RIGHT_MARK = "\u200e"
_CELL_START = re.compile(r"^(?![!-~])|\s{2,}")  # an id that begins a line is copied without the mark
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_FORMULA = r"\A[=+\-@\t\r]"
FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as texts, without control characters or newlines, printed by `rich.table`.

    `right` is True for columns of numbers, which are set to the right.
    """

    columns: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str | None = None

    @property
    def widths(self) -> list[int]:
        """Terminal cells of each column when nothing is wrapped."""
        return [max(map(cell_len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]

    @property
    def width(self) -> int:
        """Terminal cells of a line when nothing is wrapped."""
        return sum(self.widths) + _GAP * (len(self.columns) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines of the table for a console of that width."""
        from rich.table import Table as RichTable  # noqa: PLC0415  # many commands print none

        if self.title:
            yield Text(self.title, style="bold")
        if not self.columns:
            return
        if len(self.rows) > _MAX_WRAPPED_ROWS:
            yield from (Text(line, no_wrap=True, overflow="ignore") for line in self.to_text().splitlines())
            return
        table = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
        min_widths = [
            width if right else min(width, _MIN_WIDTH) for width, right in zip(self.widths, self.right, strict=True)
        ]
        cells = [[Text(cut(cell, max(_MAX_CELL, options.max_width))) for cell in row] for row in self.rows]
        if sum(min_widths) + _GAP * (len(min_widths) - 1) <= options.max_width:
            for name, right, min_width in zip(self.columns, self.right, min_widths, strict=True):
                justify: Literal["left", "right"] = "right" if right else "left"
                table.add_column(Text(name), justify=justify, no_wrap=right, min_width=min_width, overflow="fold")
            for row in cells:
                table.add_row(*row)
        else:  # columns of single letters would not be readable: one line a cell, an empty one between rows
            table.show_header = False
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for number, row in enumerate(cells):
                if number:
                    table.add_row()
                for name, cell in zip(self.columns, row, strict=True):
                    table.add_row(Text(name), cell)
        for line in console.render_lines(table, options, pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            text.rstrip()
            if console.is_terminal and _RIGHT_TO_LEFT.search(text.plain):
                # A terminal that reorders text would take neighbouring cells for one text, and swap the columns.
                text = Text(_CELL_START.sub(f"\\g<0>{_LEFT_TO_RIGHT_MARK}", text.plain))
            text.no_wrap, text.overflow = True, "ignore"
            yield text

    def to_text(self) -> str:
        """Return the table as text, one line a row."""
        lines, widths = [], self.widths
        for row in (self.columns, *self.rows):
            paddings = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            cells = [
                padding + cell if right else cell + padding
                for cell, padding, right in zip(row, paddings, self.right, strict=True)
            ]
            lines.append((" " * _GAP).join(cells).rstrip())
        return "".join(f"{line}\n" for line in lines)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe as wide as COLUMNS, or 100 if that is not set."""
    stream = sys.stderr if stderr else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    piped = int(columns) if columns.isdecimal() and int(columns) else _PIPE_WIDTH
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=None if stream.isatty() else piped)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command line; Rich would exit with an error."""
        raise BrokenPipeError


def print_line(text: str = "", *, bold: bool = False) -> None:
    """Print a line on standard output. The terminal wraps it, so that a command in it can be copied whole.

    The command to type next is for the warehouse that this one was given.
    """
    cleaned = clean_text(text)
    context = click.get_current_context(silent=True)
    if (
        cleaned.startswith("next: evalhouse ")
        and " --warehouse " not in cleaned
        and context is not None
        and context.get_parameter_source("warehouse") is ParameterSource.COMMANDLINE
    ):
        command, note_begins, note = cleaned.partition("   (")
        given = context.params["warehouse"]
        url = given if isinstance(given, str) else given.location.name
        cleaned = f"{command} --warehouse {shlex.quote(url)}{note_begins}{note}"
    click.echo(click.style(cleaned, bold=True) if bold else cleaned)


def print_table(table: Table) -> None:
    """Print a table on standard output, fitted to the terminal."""
    make_console().print(table)


def print_fitting(
    rows: Sequence[Mapping[str, object]], dropped: Iterable[Collection[str]], *, title: str | None = None
) -> None:
    """Print rows by column, `#` before the names of numbers.

    A narrow terminal does without the `dropped` columns, in this order, until the others fit; a line names them.
    """
    columns = list(rows[0])
    for names in ((), *dropped):
        columns = [column for column in columns if column not in names]
        table = make_table(columns, [[row[column] for column in columns] for row in rows], title=title)
        if table.width <= make_console().width:
            break
    print_table(table)
    if left_out := [column.removeprefix("#") for column in rows[0] if column not in columns]:
        print_line(f"note: no room for {', '.join(left_out)}; a wider terminal or --json has them")


def print_section(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with its title after an empty line; nothing without rows."""
    if rows:
        print_line()
        print_table(make_table(columns, rows, title=title))


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    print_text(write_json(value) + "\n", is_json=True)


def print_text(text: str, *, is_json: bool = False) -> None:
    """Print a text on standard output: unchanged into a pipe or file, without control characters to a terminal.

    An output that cannot hold a character of a JSON text gets JSON's escapes, and stays JSON.
    """
    if is_json and not (sys.stdout.encoding or "utf-8").lower().startswith("utf"):
        text = _BEYOND_ASCII.sub(_escape_as_json, text)
    sys.stdout.write(clean_text(text) if sys.stdout.isatty() else text)


def _escape_as_json(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def print_notice(text: str) -> None:
    """Print a sentence for the person at the terminal, on standard error, wrapped between words.

    If the pipe is closed only the sentence is lost: a run outlives the process that served it.
    """
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        text = clean_text(text)
        lines = [text]
        if sys.stderr.isatty():
            console = make_console(stderr=True)
            lines = [line.plain.rstrip() for line in Text(text).wrap(console, console.width)]
        sys.stderr.write("\n".join(lines) + "\n")


def print_new_notices(texts: Iterable[str], printed: set[str]) -> None:
    """Print the notices that this command has not `printed` yet: runs of one night share most of them."""
    for text in texts:
        if text not in printed:
            printed.add(text)
            print_notice(text)


def capitalise(text: str) -> str:
    """Write a text with a capital letter at its start."""
    return f"{text[:1].upper()}{text[1:]}"


def write_count(n: int | None, noun: str) -> str:
    """Write a count: `1 label`, `2 labels`, `1,000 labels`; `no labels` for None."""
    if n is None:
        return f"no {noun}s"
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def write_json(value: object, *, indent: bool = True) -> str:
    """Write JSON; a value without a form in it (bytes, a number beyond 64 bits) becomes a string."""
    option = orjson.OPT_INDENT_2 if indent else 0
    try:
        return orjson.dumps(value, option=option, default=_write_foreign).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_without_large_numbers(value), option=option, default=_write_foreign).decode()


def make_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> Table:
    """Make a plain table; columns whose names start with `#` hold numbers and are set to the right."""
    names = [name.removeprefix("#") for name in columns]
    heads, *cells = (tuple(clean_text(" ".join(write_value(value).split())) for value in row) for row in (names, *rows))
    return Table(columns=heads, right=tuple(name.startswith("#") for name in columns), rows=tuple(cells), title=title)


def name_support(statement: Mapping[str, Any]) -> str:
    """Name the support of a statement: `C1, C3` if each context supports it alone, `C1 + C3` if only both together.

    Earlier turns of its conversation follow: `C1, T2`, and `C1 + T2` if the context needs the turn.
    """
    alone, together = ([f"C{rank}" for rank in statement[name] or ()] for name in ("context_ranks", "joint_ranks"))
    turns = [f"T{place}" for place in statement.get("turn_ranks") or ()]
    return " + ".join([*together, *turns]) if together else ", ".join([*alone, *turns])


def explain_support(statement: Mapping[str, Any], reason: str | None) -> str | None:
    """Return the reason for a verdict of support; None if it only repeats the names that `name_support` gives."""
    return None if statement.get("supported") and reason and _ONLY_NAMES.fullmatch(reason) else reason


def escape_markdown(text: str) -> str:
    """Escape everything in a text that Markdown or HTML would act on."""
    flat = " ".join(clean_text(text).split())
    return "".join(f"\\{character}" if character in _MARKUP else character for character in flat)


def write_value(value: object) -> str:
    """Write a value for a person; a missing one is a dash."""
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
    """Write a number with three decimals, as scores have."""
    return f"{value:.3f}"


def write_decimal(value: Decimal) -> str:
    """Write every digit: a whole number beyond 64 bits stays whole, and 1.00 keeps its places."""
    exponent = value.as_tuple().exponent
    return str(int(value)) if isinstance(exponent, int) and exponent >= 0 else str(value)


def write_interval(low: float | None, high: float | None) -> str:
    """Write an interval, or a dash without one."""
    return "–" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def write_share(share: float | None) -> str:
    """Write a share as per cent, with a decimal between 0 and 1 and between 99 and 100."""
    if share is None:
        return "–"
    percent = 100 * share
    return f"{percent:.1f} %" if 0 < percent < 1 or 99 < percent < 100 else f"{percent:.0f} %"


def write_shared(row: Mapping[str, Any]) -> str:
    """Write `290 shared of 300 and 310`: the samples that both runs scored, and the numbers of each run.

    Empty if both scored the same samples.
    """
    n, before, now = row["n_shared"], row["previous_n_scored"], row["n_scored"]
    return "" if n is None or n == before == now else f"{n:,} shared of {before:,} and {now:,}"


def write_dollars(value: float | None) -> str:
    """Write dollars with as many digits as small sums need."""
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def print_scores(
    rows: Sequence[Mapping[str, Any]],
    order: Sequence[str],
    hidden: Collection[str],
    note: str | None,
    folded: Collection[str] = (),
) -> None:
    """Print rows of `run_scores` as a table in the given order of metrics, without the `hidden` and `folded` ones.

    `note` explains the hidden ones, a line says how to see the folded ones, and others name the metrics that are
    better when low, and the neutral ones.
    """
    visible = [row for row in sort_by_metric(rows, order) if row["metric"] not in hidden]
    shown = [row for row in visible if row["metric"] not in folded]
    if shown:
        cells = [
            [row["metric"], row["mean"], write_interval(row["ci_low"], row["ci_high"]), row["n_scored"],
             row["n_unscored"]]
            for row in shown
        ]  # fmt: skip
        print_table(make_table(["metric", "#mean", "95 % interval", "#scored", "#unscored"], cells))
    if n_folded := len(visible) - len(shown):
        print_line(f"{n_folded} more metrics are in `evalhouse show --all`")
    if low := [row["metric"] for row in shown if row["better"] == "low"]:
        print_line(f"note: better when low: {', '.join(low)}")
    if neutral := [row["metric"] for row in shown if row["better"] == "neutral"]:
        print_line(f"note: neither high nor low is better: {', '.join(neutral)}")
    if note:
        print_line(note)


def sort_by_metric(rows: Sequence[Mapping[str, Any]], order: Sequence[str]) -> list[Mapping[str, Any]]:
    """Sort rows by the given order of metrics; other metrics follow by name."""
    places = {metric: place for place, metric in enumerate(order)}
    return sorted(rows, key=lambda row: (places.get(row["metric"], len(places)), row["metric"]))


def write_cost(row: Mapping[str, Any]) -> str:
    """Write the cost in a row of `run_costs`, and that a part of it was estimated or is unknown."""
    if row["n_unpriced"]:
        return f"unknown, over {write_dollars(row['priced_usd'])}" if row["priced_usd"] else "unknown"
    return write_dollars(row["priced_usd"]) + (" (estimated)" if row["n_estimated"] else "")


def _write_foreign(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            text = write_decimal(value)
            return text if text.lstrip("-").isdecimal() else float(value)
        case _:
            return str(value)


def _without_large_numbers(value: object) -> object:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _without_large_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_large_numbers(item) for item in value]
    return value


def write_frame(frame: "pl.DataFrame", kind: str) -> str:
    """Write all rows as text, in one of `FORMATS` except Parquet."""
    match kind:
        case "json":
            return write_json(frame.to_dicts()) + "\n"
        case "jsonl":
            return "".join(write_json(row, indent=False) + "\n" for row in frame.iter_rows(named=True))
        case "csv":
            return disarm_formulas(frame).write_csv()
        case "markdown":
            rows = [frame.columns, ["---"] * frame.width, *frame.rows()]
            return "".join(
                "| "
                + " | ".join(
                    ("" if value is None else " ".join(write_cell(value).split()).replace("|", "\\|")) for value in row
                )
                + " |\n"
                for row in rows
            )
        case _:
            return lay_table(frame).to_text()


def disarm_formulas(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Return a table for CSV: a spreadsheet would run a text that begins like a formula, so it gets an apostrophe."""
    import polars as pl  # noqa: PLC0415

    flat = flatten_lists(frame).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    texts = pl.col(pl.String)
    harmless = flat.with_columns(pl.when(texts.str.contains(_FORMULA)).then("'" + texts).otherwise(texts).name.keep())
    return harmless.rename(lambda name: f"'{name}" if name[:1] in _FORMULA_STARTS else name)


def lay_table(frame: "pl.DataFrame") -> Table:
    """Make a table of a frame, numbers to the right."""
    columns = [f"#{name}" if frame[name].dtype.is_numeric() else name for name in frame.columns]
    return make_table(columns, [[write_cell(value) for value in row] for row in frame.iter_rows()])


def flatten_lists(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Turn lists, structs and bytes into JSON text, which a CSV cell can hold."""
    import polars as pl  # noqa: PLC0415

    flat = [name for name in frame.columns if frame[name].dtype.is_nested() or frame[name].dtype == pl.Binary]
    return frame.with_columns(
        pl.Series(
            name, [None if value is None else write_cell(value) for value in frame[name].to_list()], dtype=pl.String
        )
        for name in flat
    )


def write_cell(value: object) -> str:
    """Write a value in full: more digits than the three of a score, and lists as JSON."""
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


def is_watched() -> bool:
    """Return whether a person watches standard error."""
    # Rich takes FORCE_COLOR for a terminal as well; the log of a nightly job is not one.
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown")
