"""The charts of a report as SVG, drawn by pygal.

pygal is small (a megabyte of Python without compiled parts), draws on the Python side, needs no network, and marks its
shapes with classes, so that the page's own style sheet colours them for light, dark and paper. Plotly brings 4 MB of
script into every page, Altair needs a renderer of 30 MB that carries a JavaScript engine, and Matplotlib writes its
colours into every shape. pygal's script, styles and tooltips are left out: the page allows none but its own, and each
mark has an SVG title, which browsers show on hover and screen readers read.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pygal
from markupsafe import Markup

from evalhouse.flows.display.output import clean_text

# For plug-ins that are not used here pygal hooks itself into every import that fails, in a way that Python warns of.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]

Row = Mapping[str, Any]

N_BINS: Final = 20
"""Bars of a distribution."""
MOST_DOTS: Final = 40
"""With more runs than this the intervals of neighbours touch, and the dots make the line hard to read."""
_DROPPED_GROUPS = ("plot tooltip-overlay", "plot text-overlay", "titles")
PLAIN: Final[Mapping[str, Any]] = {
    "css": [],
    "js": [],
    "no_prefix": True,
    "disable_xml_declaration": True,
    "explicit_size": False,
    "show_legend": False,
    "margin": 6,
    "spacing": 4,
    "print_values": False,
    "pretty_print": False,
}
"""Settings of every chart: what the page's own script and style sheet do is left out."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A path in a chart that pygal cannot draw: its class in the style sheet, SVG's `d`, and what it tells on hover."""

    kind: str
    path: str
    text: str = ""


def draw_history(rows: Sequence[Row]) -> Markup:
    """The mean of one metric over the runs of a series, with intervals; rows of `score_history` in time order.

    Where another judge, language or formula was used a new line begins: means on either side are not comparable.
    """
    label = f"History of the mean over {len(rows)} runs, from {rows[0]['run_id']} to {rows[-1]['run_id']}"
    return render_chart(make_history(rows), label)


def make_history(rows: Sequence[Row], *, is_close: bool = False) -> Any:  # noqa: ANN401  # pygal has no types
    """The chart of `draw_history` before it is drawn; from close by it shows only the tenths that values are in."""
    n = len(rows)
    values = [row[name] for row in rows for name in ("mean", "ci_low", "ci_high")]
    low, high = _find_tenths(values) if is_close else _find_range(values)
    chart = pygal.Line(
        **PLAIN, width=440, height=180, range=(low, high), y_labels=_place_labels(low, high),
        x_labels=name_ends(rows), truncate_label=-1, show_dots=n <= MOST_DOTS, dots_size=3, show_x_guides=False,
        allow_interruptions=True,
    )  # fmt: skip
    for number, (start, end) in enumerate(split_by_yardstick(rows)):
        points = [_make_point(row, with_interval=n <= MOST_DOTS) for row in rows[start:end]]
        chart.add(f"yardstick {number}", [None] * start + points + [None] * (n - end))
    return chart


def draw_distribution(values: Sequence[float]) -> Markup:
    """How many samples have which score: bars over equal parts of the range, 0 to 1 where no value leaves it."""
    low, high = _find_range(values)
    width = (high - low) / N_BINS
    counts = [0] * N_BINS
    for value in values:
        counts[min(N_BINS - 1, int((value - low) / width))] += 1
    most = max(counts)
    chart = pygal.Histogram(
        **PLAIN, width=440, height=180, xrange=(low, high), range=(0, most), show_x_guides=False,
        x_labels=_place_labels(low, high),
        y_labels=[{"label": str(count), "value": count} for count in sorted({0, (most + 1) // 2, most})],
    )  # fmt: skip
    bars: list[dict[str, Any]] = []
    for place, count in enumerate(counts):
        start, end = low + place * width, low + (place + 1) * width
        text = f"{count} sample{'' if count == 1 else 's'} from {start:.2f} to {end:.2f}"
        bars.append({"value": (count, start, end), "label": text})
    chart.add("samples", [bar for bar in bars if bar["value"][0]])
    return render_chart(chart, f"Distribution of {len(values)} scores from {low:g} to {high:g}")


def draw_interval(row: Row, base_mean: float | None) -> Markup:
    """The mean of a metric and its interval on the scale from 0 to 1, and the other run's mean where there is one."""
    spread = [row["ci_low"], row["mean"], row["ci_high"]]
    chart = pygal.XY(
        **{**PLAIN, "margin": 0, "spacing": 0}, width=220, height=26, xrange=(0, 1), range=(0, 1), dots_size=4,
        show_x_labels=False, show_y_labels=False, show_x_guides=False, show_y_guides=False,
    )  # fmt: skip
    chart.add("interval", [(value, 0.5) for value in spread if value is not None], show_dots=False)
    interval = "" if row["ci_low"] is None else f", 95 % interval {_write(row['ci_low'])} to {_write(row['ci_high'])}"
    text = f"mean {_write(row['mean'])}{interval}"
    chart.add("mean", [{"value": (row["mean"], 0.5), "label": text}], stroke=False)
    if base_mean is not None:
        chart.add("base", [{"value": (base_mean, 0.5), "label": f"base {_write(base_mean)}"}], stroke=False)
    return render_chart(chart, text)


def split_by_yardstick(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Stretches of rows, from and to, that were measured alike."""
    starts = [place for place, row in enumerate(rows) if place == 0 or row["same_yardstick"] is False]
    return list(zip(starts, [*starts[1:], len(rows)], strict=True))


def name_ends(rows: Sequence[Row]) -> list[str]:
    """When the first and the last run began: there is room for no more."""
    first, last = rows[0]["started_at"], rows[-1]["started_at"]
    form = "%H:%M" if first.date() == last.date() else "%Y-%m-%d"
    return [format(first, form), *[""] * (len(rows) - 2), format(last, form)][-len(rows) :]


def _make_point(row: Row, *, with_interval: bool) -> dict[str, Any] | None:
    if row["mean"] is None:
        return None
    text = f"{row['run_id']}: {_write(row['mean'])}, n {row['n_scored']}, judged by {row['judge']}"
    point: dict[str, Any] = {"value": row["mean"], "label": clean_text(text)}
    if with_interval and row["ci_low"] is not None:
        point["ci"] = {"low": row["ci_low"], "high": row["ci_high"]}
    return point


def _find_range(values: Sequence[float | None]) -> tuple[float, float]:
    """0 to 1 where that holds all values, else what they span and 0 or 1."""
    known = [value for value in values if value is not None]
    return min(0.0, *known, 0.0), max(1.0, *known, 1.0)


def _find_tenths(values: Sequence[float | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None]
    low, high = math.floor(min(known) * 10), math.ceil(max(known) * 10)
    return low / 10, max(high, low + 2) / 10


def _place_labels(low: float, high: float) -> list[float]:
    return [low, (low + high) / 2, high]


def _write(value: float) -> str:
    return f"{value:.3f}"


def render_chart(chart: Any, label: str, *, shapes: Callable[[], Iterable[Shape]] | None = None) -> Markup:  # noqa: ANN401
    """A pygal chart as SVG: the drawing alone, and shapes that are placed by its scales once it is drawn."""
    chart.add_xml_filter(lambda root: _strip(root, label))
    if shapes is not None:
        chart.add_xml_filter(lambda root: _add_shapes(root, shapes()))
    return Markup(chart.render(is_unicode=True))  # pygal escapes every text it writes


def write_change(change: float | None) -> str:
    """A difference with its sign."""
    if change is None:
        return "–"
    return f"{change:+.3f}" if abs(change) >= 0.0005 else "±0.000"


def _add_shapes(root: Any, shapes: Iterable[Shape]) -> Any:  # noqa: ANN401  # elements of lxml or of the standard library
    plot = next(element for element in root.iter("g") if element.get("class") == "plot")
    for place, shape in enumerate(shapes, start=1):  # before the lines, behind the background
        path = root.makeelement("path", {"class": shape.kind, "d": shape.path})
        if shape.text:
            title = root.makeelement("title", {})
            title.text = clean_text(shape.text)
            path.append(title)
        plot.insert(place, path)
    return root


def _strip(root: Any, label: str) -> Any:  # noqa: ANN401  # an element of lxml or of the standard library
    """The drawing alone: no script, no style, no date of drawing; marks with titles, the whole with a label."""
    for parent in list(root.iter()):
        for child in list(parent):
            if _is_dropped(child):
                parent.remove(child)
            elif child.tag == "desc":
                child.tag = "title"
                del child.attrib["class"]
    root.attrib.pop("id", None)
    root.set("role", "img")
    root.set("aria-label", label)
    return root


def _is_dropped(element: Any) -> bool:  # noqa: ANN401  # as above
    """All but the drawing and what its marks say of themselves: other `desc` are numbers for pygal's script."""
    if not isinstance(element.tag, str):  # a comment
        return True
    if element.tag == "desc":
        return bool(element.get("class") != "label")
    return element.tag in ("defs", "style", "script", "title") or element.get("class") in _DROPPED_GROUPS
