"""The checks of a gate: is a run good enough, is it no worse than a baseline, or can the statistics not tell?

Every check ends as passed, failed or undecided. A mean is an estimate, so what decides is its 95 % interval and not the
mean: whole interval on the good side of the limit, passed; whole interval on the bad side, failed; limit inside it,
undecided. Coverage, cost and latency are the run's own and have no interval. `flows/results/gate.py` reads the
numbers from the record, `compare_runs` makes those of two runs; here they are only judged.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.changes import Part
from evalhouse.tasks.comparing.intervals import ALPHA, Floats, Integers
from evalhouse.tasks.comparing.noise import find_scale, is_judged_alike
from evalhouse.tasks.comparing.paired import RESAMPLES, ROUNDING, Drop, Paired, compare_paired, turn_to_drop
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

Kind = Literal["min", "max", "max_drop", "trend", "min_coverage", "max_cost", "max_latency_p95_ms"]
Outcome = Literal["failed", "undecided", "passed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("failed", "undecided", "passed")
Reason = Literal[
    "beyond_limit",  # failed: the value is on the bad side of the limit, and its interval with it
    "nothing_scored",  # failed: there is no value because the run has none
    "interval_holds_limit",  # undecided, as are all below
    "too_few_samples",
    "not_beyond_chance",
    "nothing_common",
    "other_judge",
    "other_formula",
    "unknown_price",
    "nothing_asked",
]

LEAST_CLUSTERS: Final = 6
"""Independent samples below which no drop is decided: of n the smallest p a sign-flip test can have is 2 / 2ⁿ, which is
at most 0.05 from six on."""
_SMALLEST_P = 0.001


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of the run as `run_scores` has it.

    `ci_low` and `ci_high` are None when nothing is scored, and when values leave 0 to 1 and do not differ; `n_samples`
    are all of the run, `n_applicable` those that are scored or for which something failed. `n_clusters` groups by the
    column `cluster` are what the interval counts, None where each sample counts for itself.
    """

    mean: float | None
    ci_low: float | None
    ci_high: float | None
    n_scored: int
    n_samples: int
    n_applicable: int
    cluster: str | None = None
    n_clusters: int | None = None
    better: Better = "high"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Dollars for the calls the run sent. `n_unpriced` of them have no known price, so that `usd` is too low by theirs;
    that of `n_estimated` was estimated from their texts."""

    usd: float
    n_unpriced: int = 0
    n_estimated: int = 0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The 95th percentile of the milliseconds to a response, over the `n` questions that the run asked and that were
    answered; None without any. `n_failed` were not, and `n_reused` responses were asked for by an earlier run."""

    p95_ms: float | None = None
    n: int = 0
    n_failed: int = 0
    n_reused: int = 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is asked of a run, by metric: least and most means, most drops, most of a fall over nights (checked by
    `trend`), least coverage (a share); most dollars; most milliseconds of 95 in 100 responses."""

    minimums: Mapping[str, float] = field(default_factory=dict)
    maximums: Mapping[str, float] = field(default_factory=dict)
    drops: Mapping[str, float] = field(default_factory=dict)
    trends: Mapping[str, float] = field(default_factory=dict)
    coverages: Mapping[str, float] = field(default_factory=dict)
    cost_usd: float | None = None
    latency_p95_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check and how it ended.

    `value` is the mean, drop, coverage, dollars or milliseconds found, with its 95 % interval where it has one, from
    `n` samples (None for dollars); None where it is not known. `beyond` is how far `value` is on the bad side of the
    limit, negative on the good side. `noise_floor`, of a drop alone, is the largest one that the judge's own noise
    makes, None when that is not known. `detail` is a sentence for a person.
    """

    kind: Kind
    metric: str | None
    limit: float
    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    beyond: float | None = None
    noise_floor: float | None = None
    outcome: Outcome
    reason: Reason | None = None
    detail: str


@dataclass(frozen=True)
class _Finding:
    outcome: Outcome
    reason: Reason | None
    detail: str


def _undecided(reason: Reason, detail: str) -> _Finding:
    return _Finding("undecided", reason, detail)


def check_all(
    limits: Limits,
    *,
    scores: Mapping[str, Score],
    comparisons: Mapping[str, MetricComparison],
    cost: Cost,
    latency: Latency,
) -> list[Check]:
    """All checks but trends, in the order of `Limits`.

    `scores` has every metric that is limited, else there is a KeyError; `comparisons` every one that either run has a
    row of scores for.
    """
    checks = [check_mean("min", name, limit, scores[name]) for name, limit in limits.minimums.items()]
    checks += [check_mean("max", name, limit, scores[name]) for name, limit in limits.maximums.items()]
    checks += check_drops(limits.drops, comparisons)
    checks += [check_coverage(name, limit, scores[name]) for name, limit in limits.coverages.items()]
    if limits.cost_usd is not None:
        checks.append(check_cost(limits.cost_usd, cost))
    if limits.latency_p95_ms is not None:
        checks.append(check_latency(limits.latency_p95_ms, latency))
    return checks


def is_passed(checks: Sequence[Check], *, undecided: Literal["pass", "fail"]) -> bool:
    """Whether the gate lets the run through."""
    counts = count_outcomes(checks)
    return not counts["failed"] and (undecided == "pass" or not counts["undecided"])


def count_outcomes(checks: Sequence[Check]) -> dict[Outcome, int]:
    """How many checks ended each way."""
    counts = Counter(check.outcome for check in checks)
    return {outcome: counts[outcome] for outcome in OUTCOMES}


def check_mean(kind: Literal["min", "max"], metric: str, limit: float, score: Score) -> Check:
    """A mean against its least or most value.

    Passed when the whole 95 % interval of the mean keeps the limit, failed when the whole interval breaks it or nothing
    is scored, undecided when the limit is inside. The interval is that of `run_scores`. Each minimum stands for itself:
    at a true mean of exactly the limit it fails in about 2.5 % of runs.
    """
    finding = _judge_mean(kind, limit, score)
    beyond = None
    if score.mean is not None:
        beyond = limit - score.mean if kind == "min" else score.mean - limit
    return Check(
        kind=kind,
        metric=metric,
        limit=limit,
        value=score.mean,
        ci_low=score.ci_low,
        ci_high=score.ci_high,
        n=score.n_scored,
        beyond=beyond,
        **vars(finding),
    )


def _judge_mean(kind: Literal["min", "max"], limit: float, score: Score) -> _Finding:
    low, high = score.ci_low, score.ci_high
    if score.mean is None:
        return _Finding("failed", "nothing_scored", "no sample is scored")
    if low is None or high is None:
        return _undecided("too_few_samples", f"{score.n_scored} equal or single values beyond 0 to 1 have no interval")
    keeps, breaks = (low >= limit, high < limit) if kind == "min" else (high <= limit, low > limit)
    if keeps:
        return _Finding("passed", None, "the whole interval keeps the limit")
    if breaks:
        return _Finding("failed", "beyond_limit", "the whole interval is beyond the limit")
    return _undecided("interval_holds_limit", f"the limit is inside the interval of {_count(score)}")


def _count(score: Score) -> str:
    samples = f"{score.n_scored} samples"
    return f"{samples} in {score.n_clusters} groups by {score.cluster}" if score.n_clusters else samples


def check_drops(limits: Mapping[str, float], comparisons: Mapping[str, MetricComparison]) -> list[Check]:
    """How much worse the run is than its baseline, by the samples that both scored, against the most allowed.

    A drop is baseline minus run, of metrics that are better when low run minus baseline; its interval is that of
    `paired`. Passed when the whole interval keeps the limit. Failed when the whole interval is beyond the limit, and
    the sign-flip test's p, adjusted over the drops of this gate (`compare_runs` is told which), is at most 0.05: where
    nothing changed, at most one gate in twenty then gives a false alarm, however many drops it checks. Also failed when
    the baseline has scores and the run has none. Undecided are all others, among them samples too few to exclude a drop
    beyond the limit though none has another score, fewer than LEAST_CLUSTERS independent samples, and a metric whose
    judge, prompt, settings or formula are not the baseline's.

    The judge's noise floor is told and decides nothing: the interval is of differences with that noise in them.
    """
    return [
        _check_drop(comparisons[name], limit) if name in comparisons else _leave_open(name, limit)
        for name, limit in limits.items()
    ]


def _leave_open(metric: str, limit: float) -> Check:
    """The drop of a metric that neither run has tried."""
    return Check(
        kind="max_drop",
        metric=metric,
        limit=limit,
        value=None,
        n=0,
        outcome="undecided",
        reason="nothing_common",
        detail="no sample is scored in either run",
    )


def _check_drop(comparison: MetricComparison, limit: float) -> Check:
    paired = comparison.paired
    drop = paired.find_drop(comparison.better)
    finding = _judge_drop(comparison, limit, low=drop.low, high=drop.high)
    return Check(
        kind="max_drop",
        metric=comparison.metric,
        limit=limit,
        value=drop.size,
        ci_low=drop.low,
        ci_high=drop.high,
        n=paired.n,
        beyond=None if drop.size is None else drop.size - limit,
        noise_floor=comparison.noise_floor,
        **vars(_add_noise(finding, comparison)),
    )


def _judge_drop(comparison: MetricComparison, limit: float, *, low: float | None, high: float | None) -> _Finding:
    paired, p = comparison.paired, comparison.paired.p_adjusted
    if comparison.n_base and not comparison.n_candidate:
        return _Finding("failed", "nothing_scored", f"no sample is scored; the baseline has {comparison.n_base}")
    if not paired.n:
        return _undecided("nothing_common", "no sample is scored in both runs")
    unlike = _find_other_yardstick(comparison)
    if unlike:
        return unlike
    if low is None or high is None or p is None or paired.n_clusters < LEAST_CLUSTERS:
        return _undecided(
            "too_few_samples",
            f"{paired.n_clusters} independent samples; it takes {LEAST_CLUSTERS} to tell a drop from chance",
        )
    if high <= limit + ROUNDING:
        return _Finding("passed", None, "the whole interval keeps the limit")
    return _find_chance(paired, limit, low=low, high=high, p=p) or _Finding(
        "failed", "beyond_limit", f"the whole interval is beyond the limit, {write_p(p)}"
    )


def _add_noise(finding: _Finding, comparison: MetricComparison) -> _Finding:
    """With the judge's noise in words, where a change that was not passed is no larger than what it makes alone."""
    floor, difference = comparison.noise_floor, comparison.paired.difference
    if finding.outcome == "passed" or not floor or not difference or abs(difference) > floor:
        return finding
    return replace(finding, detail=f"{finding.detail}; the judge's noise alone may make changes of up to {floor:.3f}")


def _find_chance(paired: Paired, limit: float, *, low: float, high: float, p: float) -> _Finding | None:
    """Undecided where the drop can be chance, or less than the limit."""
    if not paired.n_higher and not paired.n_lower:
        return _undecided(
            "too_few_samples",
            f"no sample has another score, but {_count_paired(paired)} cannot exclude a drop of {high:.3f}",
        )
    if low <= 0:
        return _undecided(
            "not_beyond_chance", "a change of this size can be chance: 0 and the limit are inside the interval"
        )
    if low <= limit + ROUNDING:
        return _undecided("interval_holds_limit", f"the limit is inside the interval of {paired.n} samples")
    if p > ALPHA:
        return _undecided("not_beyond_chance", f"it can be chance: {write_p(p)}, adjusted over the drops checked")
    return None


def _count_paired(paired: Paired) -> str:
    return str(paired.n) if paired.n == paired.n_clusters else f"{paired.n} in {paired.n_clusters} groups"


def write_p(p: float) -> str:
    """A p in words."""
    return f"p {p:.3f}" if p >= _SMALLEST_P else f"p below {_SMALLEST_P}"


def _find_other_yardstick(comparison: MetricComparison) -> _Finding | None:
    """Undecided where the judge or the formula is another in a sample that both runs scored."""
    n_other: Counter[str] = Counter()
    for part in comparison.parts:
        for cause in part.name.split("+"):
            n_other[cause] += part.n
    of_all = f"of {comparison.paired.n} common samples"
    if n_other["formula"]:
        return _undecided(
            "other_formula",
            f"another formula or setting of it in {n_other['formula']} {of_all}; `evalhouse rescore` brings it to one",
        )
    if n_other["judge"]:
        return _undecided("other_judge", f"another judge, model, prompt or setting in {n_other['judge']} {of_all}")
    return None


def cover_all(scores: Mapping[str, Score], share: float) -> dict[str, float]:
    """Return a limit on the coverage of every metric that applies to any sample of the run; of all in a run without."""
    return {name: share for name, score in scores.items() if score.n_applicable or not score.n_samples}


def check_coverage(metric: str, limit: float, score: Score) -> Check:
    """Check the share scored of the samples to which the metric applies: a count, passed or failed.

    A sample that lacks by its nature what the metric needs, such as a ground truth, does not count. A metric that
    applies to no sample fails.
    """
    coverage = score.n_scored / score.n_applicable if score.n_applicable else 0.0
    is_kept = coverage >= limit - ROUNDING and score.n_applicable > 0
    detail = f"{score.n_scored} of {score.n_applicable} samples are scored"
    if score.n_applicable < score.n_samples:
        detail += f"; the metric applies to no more of the {score.n_samples}"
    return Check(
        kind="min_coverage",
        metric=metric,
        limit=limit,
        value=coverage,
        n=score.n_applicable,
        beyond=limit - coverage,
        outcome="passed" if is_kept else "failed",
        reason=None if is_kept else "beyond_limit",
        detail=detail,
    )


def check_cost(limit: float, cost: Cost) -> Check:
    """Dollars spent against the most allowed. Calls of unknown price leave it undecided, unless the others already cost
    more."""
    finding = _judge_cost(limit, cost)
    is_known = finding.reason != "unknown_price"
    return Check(
        kind="max_cost",
        metric=None,
        limit=limit,
        value=cost.usd if is_known else None,
        beyond=cost.usd - limit if is_known else None,
        **vars(finding),
    )


def _judge_cost(limit: float, cost: Cost) -> _Finding:
    unknown = f"{cost.n_unpriced} calls have no known price (`--prices` of a run gives them one)"
    if cost.usd > limit + ROUNDING:
        return _Finding(
            "failed", "beyond_limit", f"at least this was spent: {unknown}" if cost.n_unpriced else "more was spent"
        )
    if cost.n_unpriced:
        return _undecided("unknown_price", f"{unknown}; the others cost {cost.usd:.6g} dollars")
    return _Finding(
        "passed",
        None,
        f"the cost of {cost.n_estimated} calls is an estimate" if cost.n_estimated else "no more was spent",
    )


def check_latency(limit: float, latency: Latency) -> Check:
    """The 95th percentile of the latency against the most allowed; undecided where nothing was asked and answered."""
    if latency.p95_ms is None:
        finding = _undecided("nothing_asked", _say_why_none(latency))
    elif latency.p95_ms > limit + ROUNDING:
        finding = _Finding("failed", "beyond_limit", f"more than 5 % of {latency.n} responses took longer")
    else:
        finding = _Finding("passed", None, f"at least 95 % of {latency.n} responses took no longer")
    return Check(
        kind="max_latency_p95_ms",
        metric=None,
        limit=limit,
        value=latency.p95_ms,
        n=latency.n,
        beyond=None if latency.p95_ms is None else latency.p95_ms - limit,
        **vars(finding),
    )


def _say_why_none(latency: Latency) -> str:
    if latency.n_failed:
        return f"none of the {latency.n_failed} questions that were asked was answered"
    if latency.n_reused:
        return f"this run asked nothing: all {latency.n_reused} responses are those of an earlier run"
    return "this run asked nothing: its dataset brings the answers"


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
