"""Several runs of one series laid side by side, sample by sample: what a trend and a baseline of several runs rest on.

The run at hand comes last, and its samples alone count: those that are gone tell nothing of it. A run that was judged
otherwise (another judge, model, prompt, setting or formula) is known as such, metric by metric.

A trend is a slow fall over many nights, of which no single one is worse enough to fail. The last nights are held
against the first ones since a level was accepted, sample by sample: means of several nights have less of the judge's
noise than one night, and pairing takes out how hard a sample is, so that a fall is seen long before two nights in a
row differ by more than chance; and unlike a fitted line the difference never makes more of a fall than there was. A
second window over the newest nights alone finds a fall from a level that was better than the accepted one. The
question is asked every night, so that its p must be far smaller than that of one comparison: with TREND_ALPHA a
history of thirty nights on which nothing changed has a false alarm in fewer than 5 of 100 cases
(`tests/benchmarks/gate_nights.py` measures it). Only nights that passed their gate are laid under tonight; what was
refused is no level to fall to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.gate_checks import Check, write_p
from evalhouse.tasks.comparing.intervals import Floats, Integers
from evalhouse.tasks.comparing.noise import find_scale, is_judged_alike
from evalhouse.tasks.comparing.paired import RESAMPLES, ROUNDING, Drop, Paired, compare_paired, turn_to_drop
from evalhouse.tasks.comparing.parts import Part
from evalhouse.tasks.comparing.runs import (
    Comparison,
    ComparisonSettings,
    MetricComparison,
    describe_metric,
    find_clusters,
    warn_of_status,
)
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.gates import read_values
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.rows.scores import read_asked
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class Nights:
    """One metric in several runs, oldest first and the run at hand last.

    `values` is runs × samples of the run at hand, NaN where unscored; `clusters` numbers the cluster of each sample;
    `unlike` says by run what keeps it from being compared: `judge`, `formula`, or None where nothing does.
    """

    metric: str
    runs: tuple[RunRow, ...]
    values: Floats
    clusters: Integers
    unlike: tuple[str | None, ...]
    better: Better = "high"

    def pick_alike(self) -> "Nights":
        """Those runs alone that were judged as the last one was."""
        places = [place for place, cause in enumerate(self.unlike) if cause is None]
        return Nights(
            metric=self.metric,
            runs=tuple(self.runs[place] for place in places),
            values=self.values[places],
            clusters=self.clusters,
            unlike=(None,) * len(places),
            better=self.better,
        )


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Runs side by side, by metric; `cluster` is the metadata column that the clusters rest on, None without one."""

    nights: Mapping[str, Nights]
    cluster: str | None = None


def lay_side_by_side(
    warehouse: Warehouse, run: RunRow, earlier: Sequence[RunRow], *, metrics: Sequence[str], cluster: str | None
) -> SideBySide:
    """These metrics of earlier runs, in their order, and of this one; raises ComparisonError for an unknown cluster
    column."""
    runs = (*earlier, run)
    pair = RunPair(warehouse, run, run)
    sample_ids, column, clusters = find_clusters(pair, cluster)
    frame = read_values(warehouse, [one.run_id for one in runs], metrics)
    by_metric = {str(key[0]): rows for key, rows in frame.partition_by("metric", as_dict=True).items()}
    asked = read_asked(warehouse, [one.run_id for one in runs])
    steps = pair.read_metric_steps()
    nights = {}
    for metric in metrics:
        rows = by_metric.get(metric, frame.clear())
        versions = dict(rows.select("run_id", "metric_version").unique("run_id").iter_rows())
        judged = [is_judged_alike(one, run, asked, steps.get(metric, frozenset())) for one in runs]
        formulas = [versions.get(one.run_id) in (None, versions.get(run.run_id)) for one in runs]
        nights[metric] = Nights(
            metric=metric,
            runs=runs,
            values=_place_values(rows, [one.run_id for one in runs], sample_ids),
            clusters=clusters,
            unlike=tuple(
                None if judge and formula else "judge" if formula else "formula"
                for judge, formula in zip(judged, formulas, strict=True)
            ),
            better="low" if "low" in rows["better"] else "high",
        )
    return SideBySide(nights=nights, cluster=column)


def _place_values(rows: pl.DataFrame, run_ids: Sequence[str], sample_ids: Sequence[str]) -> Floats:
    """Runs × samples, NaN where there is no row."""
    rows = (
        rows.join(pl.DataFrame({"run_id": run_ids}).with_row_index("run"), on="run_id")
        .join(pl.DataFrame({"sample_id": sample_ids}).with_row_index("sample"), on="sample_id")
        .select("run", "sample", "value")
    )
    values = np.full((len(run_ids), len(sample_ids)), np.nan)
    values[rows["run"].to_numpy(), rows["sample"].to_numpy()] = rows["value"].to_numpy()
    return values


def average_runs(values: Floats) -> Floats:
    """By sample the mean over the runs that scored it, NaN where none did; `values` is runs × samples."""
    counts = (~np.isnan(values)).sum(axis=0)
    return np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)


def compare_with_mean(laid: SideBySide, settings: ComparisonSettings) -> Comparison:
    """The last run against the mean of the others, paired by sample over the samples both have a score of.

    Runs that were judged otherwise are left out, unless all were: then that is what the change is put down to.
    """
    of_metrics = [_drop_unlike(nights) for nights in laid.nights.values()]
    bases = [average_runs(nights.values[:-1]) for nights in of_metrics]
    candidates = [nights.values[-1] for nights in of_metrics]
    paired = compare_paired(
        np.column_stack([candidate - base for base, candidate in zip(bases, candidates, strict=True)]),
        of_metrics[0].clusters,
        low_is_good=[nights.better == "low" for nights in of_metrics],
        scales=[find_scale(nights.values) for nights in of_metrics],
        seed=settings.seed,
        resamples=settings.resamples,
    )
    metrics = tuple(
        _describe(nights, base, candidate, result)
        for nights, base, candidate, result in zip(of_metrics, bases, candidates, paired, strict=True)
    )
    return Comparison(
        n_base=len(candidates[0]),
        n_candidate=len(candidates[0]),
        n_common=len(candidates[0]),
        cluster=laid.cluster,
        metrics=metrics,
        warnings=tuple(_list_warnings(list(laid.nights.values()))),
        moves=pl.DataFrame(),
    )


def _drop_unlike(nights: Nights) -> Nights:
    alike = nights.pick_alike()
    return alike if len(alike.runs) > 1 else nights


def _list_warnings(of_metrics: Sequence[Nights]) -> Iterator[str]:
    runs = of_metrics[0].runs
    for place, run in enumerate(runs[:-1]):
        unlike = [nights.metric for nights in of_metrics if nights.unlike[place]]
        if unlike:
            yield f"run {run.run_id} was judged otherwise, or by another formula: {', '.join(unlike)}"
    yield from warn_of_status(runs[-1])


def _describe(nights: Nights, base: Floats, candidate: Floats, paired: Paired) -> MetricComparison:
    """The comparison as of two runs. Its only part is what keeps them from being compared, where something does."""
    unlike = next((cause for cause in nights.unlike if cause), None)
    part = Part(name=unlike or "", n=paired.n, n_moved=paired.n_higher + paired.n_lower, value=paired.difference or 0.0)
    return describe_metric(
        nights.metric,
        base,
        candidate,
        n_samples=(len(base), len(candidate)),
        paired=paired,
        parts=(part,) if unlike else (),
        better=nights.better,
    )


TREND_ALPHA: Final = 0.003
"""Two-sided p, adjusted over metrics and windows, up to which a fall is one. Half of it is a night's chance of a false
alarm, so that of histories of thirty nights at most 30 · 0.0015 = 4.5 % have one, however the nights hang together."""
MOST_SIDE: Final = 10
"""Nights on either side of the longest window."""
NEWEST: Final = 20
"""Nights of the shorter window, for histories that are longer."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Nights whose last `n_side` are held against their first; `start` is the place of the first."""

    start: int
    n_side: int


def pick_nights(earlier: Sequence[RunRow]) -> list[RunRow]:
    """Of all nights before tonight those that some window has."""
    if len(earlier) < MOST_SIDE + NEWEST:
        return list(earlier)
    return [*earlier[:MOST_SIDE], *earlier[1 - NEWEST :]]


def list_windows(n_nights: int) -> list[Window]:
    """The windows of so many nights, tonight among them: all of them, and the newest where there are more.

    Thirds on either side find a steady fall nearly as well as a line fitted to it (Bartlett 1949, Biometrics 5(3)).
    """
    if n_nights < 2:
        return []
    windows = [Window(start=0, n_side=min(MOST_SIDE, max(1, n_nights // 3)))]
    if n_nights > NEWEST:
        windows.append(Window(start=n_nights - NEWEST, n_side=NEWEST // 3))
    return windows


def check_trends(
    limits: Mapping[str, float], nights: Mapping[str, Nights], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[Check]:
    """How far each metric has fallen (one that is better when low: risen) over the nights, against the most allowed.

    Failed when the fall is beyond chance, its whole 95 % interval is beyond the limit, and tonight is still down by
    half of it at least. All else passes: this is an alarm, and shows nothing when it is silent. `nights` has every
    metric that is limited, with its nights since the last acceptance and tonight's last.
    """
    alike = {metric: nights[metric].pick_alike() for metric in limits}
    windows = [(metric, window) for metric, of_metric in alike.items() for window in list_windows(len(of_metric.runs))]
    falls: dict[str, _Fall] = {}
    for (metric, window), paired in zip(windows, _compare_windows(alike, windows, seed, resamples), strict=True):
        fall = _Fall(nights=alike[metric], window=window, paired=paired)
        if metric not in falls or fall.plainness > falls[metric].plainness:
            falls[metric] = fall
    return [_check_fall(metric, limit, falls.get(metric)) for metric, limit in limits.items()]


def _compare_windows(
    alike: Mapping[str, Nights], windows: Sequence[tuple[str, Window]], seed: int, resamples: int
) -> list[Paired]:
    if not windows:
        return []
    return compare_paired(
        np.column_stack([_find_differences(alike[metric], window) for metric, window in windows]),
        alike[windows[0][0]].clusters,
        low_is_good=[alike[metric].better == "low" for metric, _ in windows],
        scales=[find_scale(alike[metric].values) for metric, _ in windows],
        seed=seed,
        resamples=resamples,
    )


def _find_differences(nights: Nights, window: Window) -> Floats:
    """By sample its mean over the last nights less that over the first."""
    return average_runs(nights.values[-window.n_side :]) - _average_first(nights, window)


def _average_first(nights: Nights, window: Window) -> Floats:
    return average_runs(nights.values[window.start : window.start + window.n_side])


@dataclass(frozen=True, kw_only=True)
class _Fall:
    """What became of a metric over one window."""

    nights: Nights
    window: Window
    paired: Paired

    @property
    def drop(self) -> Drop:
        """How far it fell."""
        return self.paired.find_drop(self.nights.better)

    @property
    def tonight(self) -> float:
        """How far tonight alone is below the first nights, over the samples it has in common with them."""
        differences = self.nights.values[-1] - _average_first(self.nights, self.window)
        known = differences[~np.isnan(differences)]
        return (turn_to_drop(float(known.mean()), self.nights.better) or 0.0) if len(known) else 0.0

    @property
    def plainness(self) -> tuple[bool, float, float]:
        """The greater, the more certain the fall."""
        size, p = self.drop.size, self.paired.p
        return (size is not None and size > 0, -1.0 if p is None else -p, size or 0.0)


def _check_fall(metric: str, limit: float, fall: _Fall | None) -> Check:
    drop = fall.drop if fall else Drop(size=None, low=None, high=None)
    is_found, detail = _judge_fall(limit, fall, drop)
    return Check(
        kind="trend",
        metric=metric,
        limit=limit,
        value=drop.size,
        ci_low=drop.low,
        ci_high=drop.high,
        n=fall.paired.n if fall else 0,
        beyond=None if drop.size is None else drop.size - limit,
        outcome="failed" if is_found else "passed",
        reason="beyond_limit" if is_found else None,
        detail=detail,
    )


def _judge_fall(limit: float, fall: _Fall | None, drop: Drop) -> tuple[bool, str]:
    """Whether it fails, and why (not)."""
    if fall is None:
        return False, "a trend takes an earlier night that passed and was judged as this one"
    size, low, p = drop.size, drop.low, fall.paired.p_adjusted
    if size is None or low is None or p is None:
        return False, "fewer than two independent samples are scored in the first and in the last nights"
    sides = _name_sides(fall)
    if size <= 0 or p > TREND_ALPHA:
        return False, f"no fall beyond chance: {sides}, {write_p(p)}"
    if low <= limit + ROUNDING:
        return False, f"a fall that may keep the limit: {sides}, {write_p(p)}"
    if fall.tonight < size / 2:
        return False, f"a fall that is over: {sides}, but tonight is {fall.tonight:.3f} below them"
    return True, f"a fall that is no chance: {sides}, {write_p(p)}"


def _name_sides(fall: _Fall) -> str:
    n, first = fall.window.n_side, fall.nights.runs[fall.window.start]
    nights = "night" if n == 1 else f"{n} nights"
    return f"the last {nights} against the {nights} from {first.started_at:%Y-%m-%d} on"
