"""A table of texts that fits where it is shown, drawn through Rich.

Rich's own table takes a millisecond a row and, when it is too narrow, squeezes every column to single letters. This
one wraps texts in their columns, cuts cells that would fill the screen, and writes one `column: value` line a cell when
the columns do not fit side by side. In a pipe, where the width is without end, each row is one line.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.text import Text

_GAP = 2
# A text column is not made narrower than this; numbers are never wrapped.
_LEAST_WIDTH = 12
_MOST_LINES = 8


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as they are to be read, without control characters or newlines. `right` says by column whether it is set
    to the right, which is for numbers."""

    columns: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str | None = None

    @property
    def width(self) -> int:
        """Terminal cells of a line when nothing is wrapped."""
        return sum(self._natural_widths()) + _GAP * (len(self.columns) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The table as lines for a console of that width."""
        if self.title:
            yield Text(self.title, style="bold")
        if not self.columns:
            return
        widths = self._fit_widths(options.max_width)
        lines = self._draw_records(options.max_width) if widths is None else self._draw_rows(widths)
        if widths is not None:
            yield _as_line(next(lines), style="bold")
        for line in lines:
            yield _as_line(line)

    def to_text(self) -> str:
        """The table as text, one line a row."""
        return "".join(f"{line}\n" for line in self._draw_rows(self._natural_widths()))

    def _natural_widths(self) -> list[int]:
        return [max(map(cell_len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]

    def _fit_widths(self, available: int) -> list[int] | None:
        """Widths that add up to no more than is there, taken from the widest texts first; None when nothing does."""
        widths = [min(width, available) for width in self._natural_widths()]
        excess = sum(widths) + _GAP * (len(widths) - 1) - available
        while excess > 0:
            widest = max(
                (place for place, right in enumerate(self.right) if not right and widths[place] > _LEAST_WIDTH),
                key=lambda place: widths[place],
                default=None,
            )
            if widest is None:
                return None
            widths[widest] -= 1
            excess -= 1
        return widths

    def _draw_rows(self, widths: list[int]) -> Iterator[str]:
        for row in (self.columns, *self.rows):
            cells = [wrap_text(cell, width) for cell, width in zip(row, widths, strict=True)]
            for number in range(max(map(len, cells))):
                parts = [cell[number] if number < len(cell) else "" for cell in cells]
                yield (" " * _GAP).join(map(_align, parts, widths, self.right)).rstrip()

    def _draw_records(self, available: int) -> Iterator[str]:
        margin = max(map(cell_len, self.columns)) + _GAP
        for number, row in enumerate(self.rows):
            if number:
                yield ""
            for name, cell in zip(self.columns, row, strict=True):
                first, *others = wrap_text(cell, max(_LEAST_WIDTH, available - margin))
                yield f"{_align(name, margin, False)}{first}".rstrip()
                yield from (" " * margin + line for line in others)


def wrap_text(text: str, width: int) -> list[str]:
    """A text as lines of at most that many terminal cells, cut with an ellipsis when they would be too many."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        if cell_len(word) <= width:
            lines.append(word)
        else:  # longer than a line (Chinese has no spaces): broken where the line ends
            lines[-1:] = chop_cells(joined, width)
        if len(lines) > _MOST_LINES:
            last = chop_cells(lines[_MOST_LINES - 1], width - 1)[0]
            return [*lines[: _MOST_LINES - 1], f"{last}…"]
    return lines


def _align(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _as_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ignore")
