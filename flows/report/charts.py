"""The charts of a page as data: `assets/charts.js` draws them, in the report and in `evalhouse ui`.

A chart prints itself into a page as its data beside a sentence that describes it. The sentence is shown without a
script, and read by a screen reader. Points come with their texts, written here, so that a number has the same form
everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import orjson
from markupsafe import Markup

from evalhouse.flows.results.baseline import MIN_CHANGE
from evalhouse.flows.results.comparison import name_part
from evalhouse.flows.results.output import write_interval, write_value
from evalhouse.tasks.comparing.changes import Part
from evalhouse.tasks.comparing.paired import ROUNDING
from evalhouse.warehouse.messages import clean_text

Row = Mapping[str, Any]
Kind = Literal["trend", "distribution", "interval", "amounts", "shares", "parts", "spark", "query"]

N_BINS: Final = 20
"""Bars of a distribution."""
ALL_PARTS: Final = "all together"
_MAX_STEPS: Final = 4  # of an axis whose labels must fit beside each other


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A change with the run at `place`; a break makes the means on either side incomparable."""

    place: int
    text: str
    is_break: bool


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart to be drawn; the function of its kind in `charts.js` reads `data`."""

    kind: Kind
    label: str
    data: Mapping[str, Any]

    def __html__(self) -> str:
        """Return the chart's place in a page. Nothing in the data can end their element."""
        data = embed_data(_clean({**self.data, "kind": self.kind, "label": self.label}))
        place = Markup(
            '<div class="drawing {}-chart"><script type="application/json">{}</script>'
            '<p class="undrawn">Chart, drawn by a script: {}</p></div>'
        )
        return place.format(self.kind, data, clean_text(self.label))


def embed_data(data: object) -> Markup:
    """Return data of a page as JSON that cannot end its element."""
    return Markup(orjson.dumps(data).decode().replace("<", "\\u003c"))


def draw_trend(
    rows: Sequence[Row], of: str, *, marks: Sequence[Mark] = (), is_zoomed: bool = False, link: str | None = None
) -> Chart:
    """Draw means over the runs of a series with their intervals; rows of `score_history` in time order.

    A new line begins where another judge, language or formula was used: means on either side are not comparable. The
    axis has the whole scale, or with `is_zoomed` only the tenths around the values. A point leads to `link` followed by
    the run's id.
    """
    label = f"{of} over {len(rows)} runs, from {rows[0]['run_id']} to {rows[-1]['run_id']}"
    ends = [row[name] for row in rows for name in ("mean", "ci_low", "ci_high")]
    judges = list(dict.fromkeys(row["judge"] for row in rows))
    data = _describe_runs(rows, link) | {
        "mean": _round([row["mean"] for row in rows]),
        "low": _round([row["ci_low"] for row in rows]),
        "high": _round([row["ci_high"] for row in rows]),
        "n": [row["n_scored"] for row in rows],
        "judges": judges,
        "judge": [judges.index(row["judge"]) for row in rows],
        "lines": _number_lines(rows),
        "failed": [row.get("gate") == "failed" for row in rows],
        "marks": [{"place": mark.place, "text": mark.text, "is_break": mark.is_break} for mark in marks],
        "y": list(_find_tenths(ends) if is_zoomed else _find_range(ends)),
    }
    return Chart(kind="trend", label=label, data=data)


def draw_spark(rows: Sequence[Row]) -> Chart:
    """Draw a trend so small that only its shape is seen."""
    values = [row["mean"] for row in rows]
    low, high = _find_tenths(values)
    scored = [value for value in values if value is not None]
    label = f"{len(rows)} runs, from {write_value(scored[0])} to {write_value(scored[-1])}"
    return Chart(
        kind="spark", label=label, data={"mean": _round(values), "lines": _number_lines(rows), "y": [low, high]}
    )


def draw_distribution(values: Sequence[float], *, of: str = "score", unit: str = "sample") -> Chart:
    """Draw the number of samples by score: bars over equal parts of the range, 0 to 1 unless a value is outside."""
    low, high = _find_range(values)
    counts = [0] * N_BINS
    for value in values:
        counts[min(N_BINS - 1, int((value - low) / (high - low) * N_BINS))] += 1
    label = f"Distribution of {len(values)} {unit}s by {of} from {low:g} to {high:g}"
    data = {"low": low, "high": high, "counts": counts, "of": of, "unit": unit}
    return Chart(kind="distribution", label=label, data=data)


def draw_interval(row: Row, base_mean: float | None) -> Chart:
    """Draw the mean of a metric and its interval on the scale from 0 to 1, and another run's mean if it is given."""
    has_interval = row["ci_low"] is not None
    interval = f", 95 % interval {write_interval(row['ci_low'], row['ci_high'])}" if has_interval else ""
    base = f", base {write_value(base_mean)}" if base_mean is not None else ""
    data = {"mean": row["mean"], "low": row["ci_low"], "high": row["ci_high"], "base": base_mean}
    return Chart(kind="interval", label=f"mean {write_value(row['mean'])}{interval}{base}", data=data)


def draw_amounts(
    rows: Sequence[Row], values: Sequence[float | None], *, what: str, form: str, link: str | None = None
) -> Chart:
    """Draw one bar a run; `form` writes an amount."""
    most = max((value for value in values if value is not None), default=0) or 1
    data = _describe_runs(rows, link) | {
        "name": what,
        "value": list(values),
        "texts": [None if value is None else form.format(value) for value in values],
        "most": [most, form.format(most)],
    }
    return Chart(kind="amounts", label=f"{what} of {len(rows)} runs, at most {form.format(most)}", data=data)


def draw_shares(rows: Sequence[Row], shares: Mapping[str, Sequence[float]], *, link: str | None = None) -> Chart:
    """Draw a bar for each run, in which every name has its share; in the order of the names from below."""
    values = [_round(values) for values in shares.values()]
    data = _describe_runs(rows, link) | {"names": list(shares), "shares": values}
    return Chart(kind="shares", label=f"Causes of {len(rows)} runs as shares: {', '.join(shares)}", data=data)


def draw_parts(parts: Sequence[Part], *, sign: int) -> Chart:
    """Draw why a mean moved: a bar for each part, which begins where the one above ends, and one for the sum.

    `sign` is what a rise of the metric is worth, as in SIGNS.
    """
    ends = [0.0]
    for part in parts:
        ends.append(ends[-1] + part.value)
    names = [name_part(part.name) for part in parts]
    # Round numbers hold all bars: whole steps of 1, 2 or 5 times a power of ten.
    size = (max(ends) - min(ends)) / _MAX_STEPS or 0.01
    power = 10.0 ** math.floor(math.log10(size))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= size * (1 - ROUNDING))
    first, last = math.floor(min(ends) / step + ROUNDING), math.ceil(max(ends) / step - ROUNDING)
    low, high = round(first * step, 12), round(max(last, first + 1) * step, 12)
    gains = [sign * part.value for part in parts]
    ways = ["even" if abs(gain) <= ROUNDING else "up" if gain > 0 else "down" for gain in gains]
    texts = [f"{write_change(part.value)}, {part.n_moved} of {part.n} samples moved" for part in parts]
    data = {
        "names": [*names, ALL_PARTS],
        "from": [*ends[:-1], 0.0],
        "to": [*ends[1:], ends[-1]],
        "texts": [*texts, write_change(ends[-1])],
        "ways": [*ways, "all"],
        "x": [[value, f"{value:+g}" if value else "0"] for value in sorted({low, 0.0, high})],
    }
    changes = ", ".join(f"{name} {write_change(part.value)}" for name, part in zip(names, parts, strict=True))
    return Chart(kind="parts", label=f"Parts of the change {write_change(ends[-1])}: {changes}", data=data)


def draw_result(
    columns: Mapping[str, Sequence[Any]], *, over: Literal["time", "number", "text"], by: str | None = None
) -> Chart:
    """Draw the result of a query, given by column: the first one is across, the others are numbers, and `by` names.

    Over time or a number there is a line for each column of numbers, or, for one column of numbers, for each name in
    the column `by`. Over texts there is a bar a row, as long as the number in the first column of numbers.
    """
    x, *ys = (name for name in columns if name != by)
    shown = {
        name: [value.isoformat() if isinstance(value, datetime) else value for value in values]
        for name, values in columns.items()
    }
    data = {"x": x, "ys": ys, "by": by, "over": over, "columns": shown}
    return Chart(kind="query", label=f"{', '.join(ys)} by {x}: {len(shown[x])} rows", data=data)


def write_change(change: float | None) -> str:
    """Write a difference with its sign."""
    if change is None:
        return "–"
    return f"{change:+.3f}" if abs(change) >= MIN_CHANGE else "±0.000"


def _describe_runs(rows: Sequence[Row], link: str | None) -> dict[str, Any]:
    """Describe the runs of a chart with one run at each place, and the times when some of them began."""
    starts = [row["started_at"] for row in rows]
    last = len(rows) - 1
    is_one_day = starts[0].date() == starts[-1].date()
    ends, between = ("%H:%M", "%H:%M") if is_one_day else ("%Y-%m-%d", "%m-%d")
    places = (
        sorted({round(last * part / _MAX_STEPS) for part in range(_MAX_STEPS + 1)}) if last > _MAX_STEPS else [0, last]
    )
    ticks = [[place, format(starts[place], ends if place in (0, last) else between)] for place in dict.fromkeys(places)]
    # Beside its id a run is known by its start, its label and the decision of its gate.
    known = []
    for row in rows:
        gate = f"gate {row['gate']}" if row.get("gate") else None
        known.append(" · ".join(filter(None, (f"{row['started_at']:%Y-%m-%d %H:%M}", row.get("label"), gate))))
    return {"runs": [row["run_id"] for row in rows], "known": known, "ticks": ticks, "link": link}


def _number_lines(rows: Sequence[Row]) -> list[int]:
    """Number the line of each run: runs on the same line were measured in the same way."""
    numbers, number = [], 0
    for place, row in enumerate(rows):
        number += place > 0 and row["same_yardstick"] is False
        numbers.append(number)
    return numbers


def _round(values: Sequence[float | None]) -> list[float | None]:
    """Round to six digits: more would make up most of a page and are not seen."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def _find_range(values: Sequence[float | None]) -> tuple[float, float]:
    """Return 0 and 1 if all values are between them, else the range of the values with 0 or 1."""
    scored = [value for value in values if value is not None]
    return min(0.0, *scored, 0.0), max(1.0, *scored, 1.0)


def _find_tenths(values: Sequence[float | None]) -> tuple[float, float]:
    scored = [value for value in values if value is not None]
    low, high = math.floor(min(scored) * 10), math.ceil(max(scored) * 10)
    return low / 10, max(high, low + 2) / 10


def _clean(value: Any) -> Any:  # noqa: ANN401  # any value of JSON
    """Write control characters and direction marks of all texts as escapes."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {name: _clean(entry) for name, entry in value.items()}
    return [_clean(entry) for entry in value] if isinstance(value, list | tuple) else value
