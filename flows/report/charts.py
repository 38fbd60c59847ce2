"""The charts of a page as SVG: a plot with scales and axes, and on it lines, bars, intervals, marks and a waterfall.

A chart is drawing alone. Its shapes have classes, which the page's own style sheet colours for light, dark and paper;
its marks have SVG titles, which browsers show on hover; the whole has a label, which screen readers read. A width is
that of the drawing: the page scales it to the room there is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from markupsafe import Markup

from evalhouse.flows.display.output import clean_text
from evalhouse.flows.documents.comparison import name_part
from evalhouse.tasks.comparing.paired import ROUNDING
from evalhouse.tasks.comparing.parts import Part
from evalhouse.tasks.messages import shorten

Row = Mapping[str, Any]
Labels = Mapping[float, str]

N_BINS: Final = 20
"""Bars of a distribution."""
MOST_DOTS: Final = 40
"""With more runs than this the intervals of neighbours touch, and the dots make the line hard to read."""
ALL_PARTS: Final = "all together"

# Pixels. A letter is as wide as the widest of the usual fonts draws it at the size of the style sheet.
_WIDTH, _HEIGHT, _EDGE, _BOTTOM, _LETTER, _WIDE_LETTER = 440, 180, 8, 22, 7.7, 12.5
_WIDE: Final = frozenset("%mwMW@")
_INSET: Final = 6  # between the ends of a line and those of the plot, so that no dot is cut
_TICK: Final = 7  # height of a mark that breaks no line
_ROW: Final = 26  # height of a waterfall's bar with its share of the gaps
_THICK: Final = 0.32  # half of a waterfall's bar, of 1 a row
_LONGEST_NAME: Final = 28
_MOST_STEPS: Final = 4  # of an axis whose labels must stand beside each other


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something changed with the run at `place`; a break makes the means on either side incomparable."""

    place: int
    text: str
    is_break: bool


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to pixels: `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)


class Plot:
    """A chart in the making: what is added first lies behind what comes later; all positions are values."""

    def __init__(
        self, *, x: tuple[float, float], y: tuple[float, float], x_labels: Labels, y_labels: Labels,
        width: int = _WIDTH, height: int = _HEIGHT, inset: float = 0, guides: bool = True,
    ) -> None:  # fmt: skip
        left = max(map(_measure, y_labels.values()), default=0) + (_EDGE if y_labels else 0)
        self.x = Scale(low=x[0], high=x[1], start=left + _EDGE + inset, end=width - _EDGE - inset)
        self.y = Scale(low=y[0], high=y[1], start=height - (_BOTTOM if x_labels else 0), end=_EDGE if x_labels else 0)
        self._size = (width, height)
        self._parts: list[Markup] = []
        for value, text in y_labels.items():
            height_of = self.y.place(value)
            if guides:
                self._parts.append(_draw_path("guide", f"M{left + _EDGE:.1f} {height_of:.1f}H{width - _EDGE}"))
            self._parts.append(_write(text, left, height_of + 4, "end"))
        for value, text in x_labels.items():
            anchor = "middle" if x[0] < value < x[1] else "start" if value == x[0] else "end"
            self._parts.append(_write(text, self.x.place(value), height - 6, anchor))

    def add_line(self, kind: str, points: Sequence[tuple[float, float | None]]) -> None:
        """A line through points, with a gap where a value is missing."""
        stretches = [list(group) for there, group in groupby(points, lambda point: point[1] is not None) if there]
        self.add_path(kind, "".join(f"M{'L'.join(map(self._join, stretch))}" for stretch in stretches))

    def add_area(self, kind: str, points: Sequence[tuple[float, float]]) -> None:
        """What lies within points."""
        self.add_path(kind, f"M{'L'.join(map(self._join, points))}Z")

    def add_upright(self, kind: str, x: float, low: float, high: float, text: str = "", *, caps: float = 0) -> None:
        """A line from low to high, with bars of that many pixels to either side at its ends."""
        place, bottom, top = self.x.place(x), self.y.place(low), self.y.place(high)
        ends = "".join(f"M{place - caps:.1f} {end:.1f}h{2 * caps:g}" for end in (bottom, top)) if caps else ""
        self.add_path(kind, f"M{place:.1f} {bottom:.1f}V{top:.1f}{ends}", text)

    def add_dot(self, kind: str, x: float, y: float, text: str, *, radius: float = 3) -> None:
        """A point with a text."""
        shape = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:g}">{}</circle>')
        self._parts.append(shape.format(kind, self.x.place(x), self.y.place(y), radius, _title(text)))

    def add_bar(self, kind: str, x: tuple[float, float], y: tuple[float, float], text: str) -> None:
        """A bar between two values each way; the smallest is still to be seen."""
        left, right = sorted(map(self.x.place, x))
        top, bottom = sorted(map(self.y.place, y))
        right = max(right, left + 1)
        self.add_path(kind, f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z", text)

    def add_path(self, kind: str, path: str, text: str = "") -> None:
        """A shape of pixels."""
        self._parts.append(_draw_path(kind, path, text))

    def render(self, label: str) -> Markup:
        """The chart, whose label says in a sentence what it shows."""
        frame = Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">'
            "{}</svg>"
        )
        return frame.format(*self._size, clean_text(label), Markup("").join(self._parts))

    def _join(self, point: tuple[float, float | None]) -> str:
        return f"{self.x.place(point[0]):.1f} {self.y.place(point[1] or 0):.1f}"


def draw_history(rows: Sequence[Row]) -> Markup:
    """The mean of one metric over the runs of a series, with intervals; rows of `score_history` in time order.

    Where another judge, language or formula was used a new line begins: means on either side are not comparable.
    """
    values = [row[name] for row in rows for name in ("mean", "ci_low", "ci_high")]
    plot = _make_history(rows, _find_range(values))
    _add_means(plot, rows)
    return plot.render(f"History of the mean over {len(rows)} runs, from {rows[0]['run_id']} to {rows[-1]['run_id']}")


def draw_trend(rows: Sequence[Row], marks: Sequence[Mark]) -> Markup:
    """The history of one metric from close by, with marks and, where dots would touch, a band of intervals."""
    values = [row[name] for row in rows for name in ("mean", "ci_low", "ci_high")]
    plot = _make_history(rows, _find_tenths(values))
    if len(rows) > MOST_DOTS:
        _add_bands(plot, rows)
    for mark in marks:
        x = max(0.0, mark.place - 0.5)
        if mark.is_break:
            plot.add_upright("mark-break", x, plot.y.low, plot.y.high, mark.text)
        else:
            bottom = plot.y.start
            plot.add_path("mark-tick", f"M{plot.x.place(x):.1f} {bottom:.1f}V{bottom - _TICK:.1f}", mark.text)
    _add_means(plot, rows)
    return plot.render(f"History of the mean over {len(rows)} runs")


def draw_distribution(values: Sequence[float]) -> Markup:
    """How many samples have which score: bars over equal parts of the range, 0 to 1 where no value leaves it."""
    low, high = _find_range(values)
    width = (high - low) / N_BINS
    counts = [0] * N_BINS
    for value in values:
        counts[min(N_BINS - 1, int((value - low) / width))] += 1
    most = max(counts)
    y_labels: Labels = {count: str(count) for count in sorted({0, (most + 1) // 2, most})}
    plot = Plot(x=(low, high), y=(0, most), x_labels=_label_scale(low, high), y_labels=y_labels)
    for place, count in enumerate(counts):
        if count:
            start, end = low + place * width, low + (place + 1) * width
            text = f"{count} sample{'' if count == 1 else 's'} from {start:.2f} to {end:.2f}"
            plot.add_bar("rect", (start + width / 20, end - width / 20), (0, count), text)
    return plot.render(f"Distribution of {len(values)} scores from {low:g} to {high:g}")


def draw_interval(row: Row, base_mean: float | None) -> Markup:
    """The mean of a metric and its interval on the scale from 0 to 1, and the other run's mean where there is one."""
    plot = Plot(x=(0, 1), y=(0, 1), x_labels={}, y_labels={}, width=220, height=26)
    interval = ""
    if row["ci_low"] is not None:
        plot.add_line("interval", [(row["ci_low"], 0.5), (row["ci_high"], 0.5)])
        interval = f", 95 % interval {row['ci_low']:.3f} to {row['ci_high']:.3f}"
    text = f"mean {row['mean']:.3f}{interval}"
    plot.add_dot("dot", row["mean"], 0.5, text, radius=4)
    if base_mean is not None:
        plot.add_dot("base", base_mean, 0.5, f"base {base_mean:.3f}", radius=4)
    return plot.render(text)


def draw_amounts(rows: Sequence[Row], values: Sequence[float | None], *, what: str, form: str) -> Markup:
    """One bar a run; `form` writes an amount."""
    most = max((value for value in values if value is not None), default=0) or 1
    y_labels = {value: form.format(value) for value in (0, most)}
    plot = Plot(x=(0, len(rows)), y=(0, most), x_labels=_label_ends(rows, len(rows)), y_labels=y_labels, height=150)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value is not None:
            plot.add_bar("rect", _slot(place), (0, value), f"{row['run_id']}: {form.format(value)}")
    return plot.render(f"{what} of {len(rows)} runs, at most {form.format(most)}")


def draw_shares(rows: Sequence[Row], shares: Mapping[str, Sequence[float]]) -> Markup:
    """Bars of a run each, in which every name has its share; in the order of the names from below."""
    plot = Plot(
        x=(0, len(rows)), y=(0, 1), x_labels=_label_ends(rows, len(rows)), y_labels=_label_scale(0, 1), width=660,
        height=180,
    )  # fmt: skip
    bottoms = [0.0] * len(rows)
    for number, (name, values) in enumerate(shares.items()):
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            if value:
                ends = (bottoms[place], bottoms[place] + value)
                plot.add_bar(f"rect color-{number}", _slot(place), ends, f"{name}: {value:.1%} in {row['run_id']}")
                bottoms[place] += value
    return plot.render(f"Causes of {len(rows)} runs as shares: {', '.join(shares)}")


def draw_parts(parts: Sequence[Part], *, low_is_good: bool) -> Markup:
    """Why a mean moved: a bar for each part, which begins where the one above ends, and one for the sum, from 0."""
    ends = [0.0]
    for part in parts:
        ends.append(ends[-1] + part.value)
    names = [name_part(part.name) for part in parts] + [ALL_PARTS]
    n = len(names)
    low, high = _find_room(ends)
    plot = Plot(
        x=(low, high), y=(0, n), height=40 + _ROW * n, guides=False,
        x_labels={value: f"{value:+g}" if value else "0" for value in sorted({low, 0.0, high})},
        y_labels={n - place - 0.5: shorten(name, _LONGEST_NAME) for place, name in enumerate(names)},
    )  # fmt: skip
    plot.add_upright("zero", 0, 0, n)
    for place, part in enumerate(parts):
        text = f"{names[place]}: {write_change(part.value)}, {part.n_moved} of {part.n} samples moved"
        way = _name_way(-part.value if low_is_good else part.value)
        plot.add_bar(f"part-{way}", (ends[place], ends[place + 1]), _row(n - place - 0.5), text)
    plot.add_bar("part-all", (0.0, ends[-1]), _row(0.5), f"{ALL_PARTS}: {write_change(ends[-1])}")
    changes = ", ".join(f"{name} {write_change(part.value)}" for name, part in zip(names, parts, strict=False))
    return plot.render(f"Parts of the change {write_change(ends[-1])}: {changes}")


def write_change(change: float | None) -> str:
    """A difference with its sign."""
    if change is None:
        return "–"
    return f"{change:+.3f}" if abs(change) >= 0.0005 else "±0.000"


def _make_history(rows: Sequence[Row], y: tuple[float, float]) -> Plot:
    last = len(rows) - 1
    x = (0, last) if last else (-1, 1)
    return Plot(x=x, y=y, x_labels=_label_ends(rows, last), y_labels=_label_scale(*y), inset=_INSET)


def _add_means(plot: Plot, rows: Sequence[Row]) -> None:
    """The line of means and, where there is room, a dot and an interval for each run."""
    for start, end in _split_by_yardstick(rows):
        plot.add_line("line", [(place, rows[place]["mean"]) for place in range(start, end)])
    if len(rows) > MOST_DOTS:
        return
    for place, row in enumerate(rows):
        if row["mean"] is not None:
            if row["ci_low"] is not None:
                plot.add_upright("ci", place, row["ci_low"], row["ci_high"], caps=3)
            text = f"{row['run_id']}: {row['mean']:.3f}, n {row['n_scored']}, judged by {row['judge']}"
            plot.add_dot("dot", place, row["mean"], text)


def _add_bands(plot: Plot, rows: Sequence[Row]) -> None:
    for start, end in _split_by_yardstick(rows):
        places = [place for place in range(start, end) if rows[place]["ci_low"] is not None]
        if len(places) > 1:
            upper = [(place, rows[place]["ci_high"]) for place in places]
            plot.add_area("band", [*upper, *((place, rows[place]["ci_low"]) for place in reversed(places))])


def _split_by_yardstick(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """Stretches of rows, from and to, that were measured alike."""
    starts = [place for place, row in enumerate(rows) if place == 0 or row["same_yardstick"] is False]
    return zip(starts, [*starts[1:], len(rows)], strict=True)


def _label_ends(rows: Sequence[Row], end: float) -> dict[float, str]:
    """When the first and the last run began: there is room for no more."""
    first, last = rows[0]["started_at"], rows[-1]["started_at"]
    form = "%H:%M" if first.date() == last.date() else "%Y-%m-%d"
    return {0: format(first, form)} if len(rows) == 1 else {0: format(first, form), end: format(last, form)}


def _label_scale(low: float, high: float) -> dict[float, str]:
    return {value: f"{value:g}" for value in (low, (low + high) / 2, high)}


def _find_range(values: Sequence[float | None]) -> tuple[float, float]:
    """0 to 1 where that holds all values, else what they span and 0 or 1."""
    scored = [value for value in values if value is not None]
    return min(0.0, *scored, 0.0), max(1.0, *scored, 1.0)


def _find_tenths(values: Sequence[float | None]) -> tuple[float, float]:
    scored = [value for value in values if value is not None]
    low, high = math.floor(min(scored) * 10), math.ceil(max(scored) * 10)
    return low / 10, max(high, low + 2) / 10


def _find_room(ends: Sequence[float]) -> tuple[float, float]:
    """Round numbers that hold all bars: whole steps of 1, 2 or 5 times a power of ten."""
    low, high = min(ends), max(ends)
    size = (high - low) / _MOST_STEPS or 0.01
    power = 10.0 ** math.floor(math.log10(size))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= size * (1 - ROUNDING))
    first, last = math.floor(low / step + ROUNDING), math.ceil(high / step - ROUNDING)
    return round(first * step, 12), round(max(last, first + 1) * step, 12)


def _measure(text: str) -> float:
    """How wide a text is at most; wide letters are those of other scripts as well."""
    return sum(_WIDE_LETTER if letter in _WIDE or letter > "\u2e80" else _LETTER for letter in text)


def _slot(place: int) -> tuple[float, float]:
    return place + 0.08, place + 0.92


def _row(middle: float) -> tuple[float, float]:
    return middle - _THICK, middle + _THICK


def _name_way(value: float) -> str:
    return "even" if abs(value) <= ROUNDING else "up" if value > 0 else "down"


def _draw_path(kind: str, path: str, text: str = "") -> Markup:
    return Markup('<path class="{}" d="{}">{}</path>').format(kind, path, _title(text))


def _write(text: str, x: float, y: float, anchor: str) -> Markup:
    shape = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    return shape.format(x, y, anchor, clean_text(text))


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(clean_text(text)) if text else Markup()
