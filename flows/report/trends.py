"""What is added to pygal's charts for a long history: a band of intervals, marks where something changed, and bars.

pygal draws points and lines; a band and a mark are one path each, placed by pygal's own scale once it has drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pygal
from markupsafe import Markup

from evalhouse.flows.display.output import clean_text
from evalhouse.flows.report.charts import (
    MOST_DOTS,
    PLAIN,
    Shape,
    make_history,
    name_ends,
    render_chart,
    split_by_yardstick,
)

Row = Mapping[str, Any]
_TICK: Final = 7  # height of a mark that breaks no line


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something became another with the run at `place`; a break makes the means on either side incomparable."""

    place: int
    text: str
    is_break: bool


def draw_trend(rows: Sequence[Row], marks: Sequence[Mark]) -> Markup:
    """The history of one metric, every run at its place, with marks and, where dots would touch, a band."""
    chart = make_history(rows, is_close=True)

    def list_shapes() -> Iterator[Shape]:
        if len(rows) > MOST_DOTS:
            yield from _make_bands(chart, rows)
        yield from _make_marks(chart, rows, marks)

    return render_chart(chart, f"History of the mean over {len(rows)} runs", shapes=list_shapes)


def draw_amounts(rows: Sequence[Row], values: Sequence[float | None], *, what: str, form: str) -> Markup:
    """One bar a run; `form` writes an amount."""
    most = max((value for value in values if value is not None), default=0) or 1
    chart = pygal.Bar(
        **PLAIN, width=440, height=150, range=(0, most), show_x_guides=False, x_labels=name_ends(rows),
        truncate_label=-1, y_labels=[{"label": form.format(value), "value": value} for value in (0, most)],
    )  # fmt: skip
    bars = [
        None if value is None else {"value": value, "label": clean_text(f"{row['run_id']}: {form.format(value)}")}
        for row, value in zip(rows, values, strict=True)
    ]
    chart.add(what, bars)
    return render_chart(chart, f"{what} of {len(rows)} runs, at most {form.format(most)}")


def draw_shares(rows: Sequence[Row], shares: Mapping[str, Sequence[float]]) -> Markup:
    """Bars of a run each, in which every name has its share; in the order of the names from below."""
    chart = pygal.StackedBar(
        **PLAIN, width=900, height=260, range=(0, 1), show_x_guides=False, x_labels=name_ends(rows),
        truncate_label=-1, y_labels=[0, 0.5, 1],
    )  # fmt: skip
    for name, values in shares.items():
        chart.add(
            name,
            [
                {"value": value, "label": clean_text(f"{name}: {value:.1%} in {row['run_id']}")} if value else None
                for row, value in zip(rows, values, strict=True)
            ],
        )
    return render_chart(chart, f"Causes of {len(rows)} runs as shares: {', '.join(shares)}")


def _make_bands(chart: Any, rows: Sequence[Row]) -> Iterator[Shape]:  # noqa: ANN401  # pygal's
    for start, end in split_by_yardstick(rows):
        known = [place for place in range(start, end) if rows[place]["ci_low"] is not None]
        if len(known) > 1:
            upper = [_place(chart, place, rows[place]["ci_high"]) for place in known]
            lower = [_place(chart, place, rows[place]["ci_low"]) for place in reversed(known)]
            yield Shape(kind="band", path=f"M{'L'.join([*upper, *lower])}Z")


def _make_marks(chart: Any, rows: Sequence[Row], marks: Sequence[Mark]) -> Iterator[Shape]:  # noqa: ANN401
    low, high = chart.view.y(chart.range[0]), chart.view.y(chart.range[1])
    for mark in marks:
        x = chart.view.x(_middle(mark.place, len(rows)))
        top = high if mark.is_break else low - _TICK
        kind = "mark-break" if mark.is_break else "mark-tick"
        yield Shape(kind=kind, path=f"M{x:.1f} {low:.1f}V{top:.1f}", text=mark.text)


def _place(chart: Any, place: int, value: float) -> str:  # noqa: ANN401  # pygal's
    return f"{chart.view.x(chart._x_pos[place]):.1f} {chart.view.y(value):.1f}"


def _middle(place: int, n: int) -> float:
    """Between a run and the one before, on pygal's axis from 0 to 1."""
    return max(0.0, (place - 0.5) / (n - 1)) if n > 1 else 0.5
