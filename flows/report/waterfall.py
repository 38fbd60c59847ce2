"""Why each mean moved, as a waterfall: one bar for each part of a difference, and one for all of them.

pygal has no waterfall, so it draws the scales of an empty chart and the bars are placed by them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pygal
from markupsafe import Markup

from evalhouse.flows.display.output import write_value
from evalhouse.flows.documents.comparison import name_part
from evalhouse.flows.report.charts import PLAIN, Shape, render_chart, write_change
from evalhouse.tasks.comparing.directions import LOW_IS_GOOD
from evalhouse.tasks.comparing.paired import ROUNDING
from evalhouse.tasks.comparing.parts import Part
from evalhouse.tasks.comparing.runs import Comparison, MetricComparison

_ROW: Final = 26  # height of a bar with its share of the gaps
_THICK: Final = 0.32  # half of a bar's height, of 1 a row
_LETTER: Final = 2  # by so much a letter is wider than pygal takes it for
_LEAST_SHOWN: Final = 0.0005
_ALL: Final = "all together"


def describe_parts(comparison: Comparison) -> list[dict[str, Any]]:
    """By metric whose mean moved, the chart of its parts and their numbers; the last row is the sum."""
    return [_describe(one) for one in comparison.metrics if one.change is not None and any(_list_moved(one))]


def draw_parts(parts: Sequence[Part], *, low_is_good: bool) -> Markup:
    """A bar for each part, which begins where the one above ends, and one for the sum; from 0, of the mean's scale."""
    ends = [0.0]
    for part in parts:
        ends.append(ends[-1] + part.value)
    names = [name_part(part.name) for part in parts] + [_ALL]
    n = len(names)
    low, high = _find_scale(ends)
    chart = pygal.XY(
        **{**PLAIN, "margin_left": _LETTER * max(map(len, names))}, width=440, height=40 + _ROW * n,
        xrange=(low, high), range=(0, n), show_y_guides=False, show_x_guides=False,
        x_labels=[low, 0, high] if low < 0 < high else [low, high], x_value_formatter=write_change, truncate_label=-1,
        y_labels=[{"label": name, "value": n - place - 0.5} for place, name in enumerate(names)],
    )  # fmt: skip
    chart.add("scale", [(low, 0), (high, n)], stroke=False, show_dots=False)

    def list_shapes() -> Iterator[Shape]:
        bottom, top = chart.view.y(0), chart.view.y(n)
        yield Shape(kind="zero", path=f"M{chart.view.x(0):.1f} {bottom:.1f}V{top:.1f}")
        for place, part in enumerate(parts):
            text = f"{names[place]}: {write_change(part.value)}, {part.n_moved} of {part.n} samples moved"
            kind = _name_way(-part.value if low_is_good else part.value)
            yield _make_bar(chart, n - place - 0.5, (ends[place], ends[place + 1]), kind, text)
        yield _make_bar(chart, 0.5, (0.0, ends[-1]), "all", f"{_ALL}: {write_change(ends[-1])}")

    told = ", ".join(f"{name} {write_change(part.value)}" for name, part in zip(names, parts, strict=False))
    return render_chart(chart, f"Parts of the change {write_change(ends[-1])}: {told}", shapes=list_shapes)


def _describe(compared: MetricComparison) -> dict[str, Any]:
    parts = sorted(_list_moved(compared), key=lambda part: -abs(part.value))
    rows = [
        {"name": name_part(part.name), "n": part.n, "n_moved": part.n_moved, "value": write_change(part.value)}
        for part in parts
    ]
    total = {"name": _ALL, "n": "", "n_moved": "", "value": write_change(compared.change)}
    return {
        "metric": compared.metric,
        "base": write_value(compared.mean_base),
        "candidate": write_value(compared.mean_candidate),
        "change": write_change(compared.change),
        "floor": write_value(compared.noise_floor) if (compared.noise_floor or 0) >= _LEAST_SHOWN else None,
        "chart": draw_parts(parts, low_is_good=compared.metric in LOW_IS_GOOD),
        "rows": [*rows, total],
    }


def _list_moved(compared: MetricComparison) -> list[Part]:
    return [part for part in compared.parts if part.n_moved and abs(part.value) > ROUNDING]


def _find_scale(ends: Sequence[float]) -> tuple[float, float]:
    """What holds all bars, with a little room."""
    low, high = min(ends), max(ends)
    room = (high - low) * 0.04 or 0.01
    return low - room if low < 0 else 0.0, high + room if high > 0 else 0.0


def _name_way(value: float) -> str:
    return "even" if abs(value) <= ROUNDING else "up" if value > 0 else "down"


def _make_bar(chart: Any, y: float, ends: tuple[float, float], kind: str, text: str) -> Shape:  # noqa: ANN401  # pygal's
    left, right = sorted(chart.view.x(end) for end in ends)
    top, bottom = sorted((chart.view.y(y - _THICK), chart.view.y(y + _THICK)))
    right = max(right, left + 1)  # the smallest part is still to be seen
    path = f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z"
    return Shape(kind=f"part-{kind}", path=path, text=text)
