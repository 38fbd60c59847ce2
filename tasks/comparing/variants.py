"""Many runs of the same samples at once: each is compared with the first one, and no more is found than is there.

All differences, of every run and metric, are one family of the test that two runs have (`paired`): the same signs are
flipped in all of them, so that runs which move together cost little, and p is adjusted over all comparisons. The
intervals hold all at once as well, so that a difference is better or worse exactly where p and its interval show it.
Runs are compared with the first one only: whether two of the others differ is the question of another comparison.

Slices of a metadata column are a second family, over all values, runs and metrics.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.changes import METADATA_INPUTS
from evalhouse.tasks.comparing.gate_checks import Nights, lay_side_by_side
from evalhouse.tasks.comparing.intervals import Floats
from evalhouse.tasks.comparing.noise import find_scale
from evalhouse.tasks.comparing.paired import MAX_LOST, ROUNDING, Paired, compare_paired, is_sampled
from evalhouse.tasks.comparing.runs import (
    NOTHING_TO_MEASURE,
    ComparisonError,
    ComparisonSettings,
    check_common,
    fetch_scores,
    leave_side_open,
    list_measured_otherwise,
    list_right_refusals,
    warn_of_status,
)
from evalhouse.tasks.comparing.slices import find_slices
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

MAX_RUNS: Final = 10
"""More columns do not fit beside each other."""


@dataclass(frozen=True, kw_only=True)
class VariantDifference:
    """One metric of a run less that of the first run, over the samples that both scored.

    `common_first` is the mean of the first run over these samples. `unlike` is what keeps the two from being compared,
    `judge` or `formula`; then nothing is tested.
    """

    paired: Paired
    common_first: float | None
    unlike: str | None = None

    @property
    def verdict(self) -> str:
        """The verdict of a comparison of two runs, or `other judge`, `other formula`."""
        return f"other {self.unlike}" if self.unlike else self.paired.verdict


@dataclass(frozen=True, kw_only=True)
class VariantMetric:
    """One metric in all runs, in their order; `differences` begin with the second run.

    Means are over the samples of the first run that a run scored. `slice` is a value of the column, None over all
    samples.
    """

    metric: str
    better: Better
    means: tuple[float | None, ...]
    n_scored: tuple[int, ...]
    differences: tuple[VariantDifference, ...]
    slice: str | None = None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The number of samples without a score, of the `n_of` that another run scored, with the reasons."""

    n: int
    n_of: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class VariantComparison:
    """Runs compared with the first of them. `names` are their labels, else the names of variants, or ids where that is
    missing or shared.

    `n_samples` counts the samples that each run shares with the first one, `n_comparisons` the differences over which p
    is adjusted. `cluster` is the column that was used, `by` that of the slices. `scores` has by metric the values of
    `sample_ids` × runs, NaN where unscored. `failed` has for each run how many samples it failed to score that the
    first run scored, or one of the others where it is the first; None for a run that failed in few.
    """

    runs: tuple[RunRow, ...]
    names: tuple[str, ...]
    n_samples: tuple[int, ...]
    n_comparisons: int
    metrics: tuple[VariantMetric, ...]
    slices: tuple[VariantMetric, ...] = ()
    by: str | None = None
    cluster: str | None = None
    warnings: tuple[str, ...] = ()
    sample_ids: tuple[str, ...] = ()
    scores: Mapping[str, Floats]
    failed: tuple[Failed | None, ...]

    def list_found(self, place: int, verdict: str) -> list[VariantMetric]:
        """Return the metrics in which the run at this place, from 1, is better or worse than the first one."""
        return [metric for metric in self.metrics if metric.differences[place - 1].verdict == verdict]

    @property
    def contenders(self) -> list[int]:
        """The places of the runs that are better than the first one in some metric, worse in none, and did not fail."""
        places = [place for place in range(1, len(self.runs)) if self.failed[place] is None]
        return [place for place in places if self.list_found(place, "better") and not self.list_found(place, "worse")]

    @property
    def winner(self) -> RunRow | None:
        """The only run that is better than the first one and worse in nothing, or the first one if all others are
        worse and better in nothing; None if there is no clear winner, as where that run failed."""
        if len(self.contenders) == 1:
            return self.runs[self.contenders[0]]
        others = range(1, len(self.runs))
        are_worse = all(self.list_found(place, "worse") and not self.list_found(place, "better") for place in others)
        if are_worse and self.failed[0] is None:
            return self.runs[0]
        return None

    def rank_samples(self, metric: str | None = None) -> list[tuple[str, float]]:
        """Return the samples with how far apart their scores are, the furthest first, over all metrics or in one.

        A score that only some of the runs with this metric have counts as 1.
        """
        distance = np.zeros(len(self.sample_ids))
        for values in self.scores.values() if metric is None else (self.scores[metric],):
            distance += measure_spreads(values[:, ~np.isnan(values).all(axis=0)])
        distance[distance <= ROUNDING] = 0.0
        return [(self.sample_ids[place], float(distance[place])) for place in np.argsort(-distance, kind="stable")]


def measure_spreads(values: Floats) -> Floats:
    """Return by sample how far apart its scores are, of samples × runs; 1 where only some of the runs have one."""
    is_scored = ~np.isnan(values)
    n_scored = is_scored.sum(axis=1)
    spread = np.where(is_scored, values, -np.inf).max(axis=1) - np.where(is_scored, values, np.inf).min(axis=1)
    spreads: Floats = np.where(n_scored == values.shape[1], spread, n_scored > 0)
    return spreads


@one_reader()
def compare_variants(
    warehouse: Warehouse, runs: Sequence[RunRow], settings: ComparisonSettings, *, by: str | None = None
) -> VariantComparison:
    """Compare runs with the first of them in `settings.metrics`, or in all metrics; `by` also in each of its slices.

    Raises NothingCommon for a run that shares no sample with the first one, and ComparisonError for a number of runs
    that cannot be compared, a run that was named twice or judged a part of its dataset, and an unknown column.
    """
    first, others = runs[0], runs[1:]
    if not others or len(runs) > MAX_RUNS:
        raise ComparisonError(f"{len(runs)} runs were named; name 2 to {MAX_RUNS}")
    if twice := [run.run_id for place, run in enumerate(runs) if run in runs[:place]]:
        raise ComparisonError(f"run {twice[0]} was named twice; name each run once (`evalhouse runs` lists all)")
    for run in runs:
        if is_sampled(run):
            raise ComparisonError(
                f"run {run.run_id} judged a part of its dataset, picked with unequal probabilities, so that its means "
                "cannot be set beside others; compare two runs at a time, or run it without --sample-budget"
            )
    pairs = [RunPair(warehouse, first, run) for run in others]
    for pair in pairs:
        check_common(pair)
    slices = find_slices(warehouse, first, by) if by is not None else {}
    of_runs = dict.fromkeys(metric for run in runs for metric in run.metrics)
    metrics = [metric for metric in of_runs if settings.metrics is None or metric in settings.metrics]
    laid = lay_side_by_side(warehouse, first, others, metrics=metrics, cluster=settings.cluster)
    # Laid out with the run at hand last, which is the first one here.
    nights = [_keep_scored_causes(of) for of in laid.nights.values() if not np.isnan(of.values).all()]
    cells = [
        (value, of_metric, np.isin(np.array(laid.sample_ids, dtype=object), members))
        for value, members in slices.items()
        for of_metric in nights
    ]
    everywhere = np.ones(len(laid.sample_ids), dtype=bool)
    compared = _compare_columns([(None, of_metric, everywhere) for of_metric in nights], settings)
    counts = [pair.fetch("samples").filter("in_base", "in_candidate").height for pair in pairs]
    # Runs of a suite and its variants have those names, as far as they have no labels.
    is_night = any(run.variant for run in runs)
    labels = [run.label or (run.variant or run.suite if is_night else None) for run in runs]
    names = tuple(
        label if label and labels.count(label) == 1 else run.run_id for run, label in zip(runs, labels, strict=True)
    )
    of_pairs = [_fetch_flagged_scores(pair, metrics) for pair in pairs]
    failed_first = [_find_failed(scores, "candidate", "base") for scores in of_pairs]
    return VariantComparison(
        runs=tuple(runs),
        names=names,
        n_samples=(len(laid.sample_ids), *counts),
        n_comparisons=sum(
            difference.paired.p_adjusted is not None for metric in compared for difference in metric.differences
        ),
        metrics=tuple(compared),
        slices=tuple(_compare_columns(cells, settings)),
        by=by,
        cluster=laid.cluster,
        warnings=(*laid.warnings, *_list_warnings(pairs, names, (len(laid.sample_ids), *counts), nights)),
        sample_ids=tuple(laid.sample_ids),
        scores={of_metric.metric: np.roll(of_metric.values, 1, axis=0).T for of_metric in nights},
        failed=(
            max(filter(None, failed_first), key=lambda failed: failed.n, default=None),
            *(_find_failed(scores, "base", "candidate") for scores in of_pairs),
        ),
    )


def _fetch_flagged_scores(pair: RunPair, metrics: Collection[str]) -> pl.DataFrame:
    """Return the scores of these metrics, with `base_is_empty` and `candidate_is_empty` where a side rightly refused or
    had nothing to measure.

    An answer that states nothing is one that a run failed to give where answer_rate does not count it: the answers that
    it gave may be the easy ones.
    """
    scores = fetch_scores(pair)
    nothing = list(NOTHING_TO_MEASURE - {"no_statements"})
    flags = []
    for side, right in list_right_refusals(pair).items():
        counted = scores.filter(metric="answer_rate").drop_nulls(side)["sample_id"].implode()
        reason, sample_id = pl.col(f"{side}_reason"), pl.col("sample_id")
        is_counted = (reason == "no_statements") & sample_id.is_in(counted)
        is_empty = (reason.is_in(nothing) | is_counted).fill_null(False) | sample_id.is_in(right)
        flags.append(is_empty.alias(f"{side}_is_empty"))
    return scores.filter(pl.col("metric").is_in(metrics)).with_columns(flags)


def _find_failed(scores: pl.DataFrame, scored: str, failing: str) -> Failed | None:
    """Return what a side of a pair did not score that the other side scored, in the metric with the most of it, where
    that is more than MAX_LOST: what failed, what lacks a text, and the samples that it does not have."""
    value, reason = pl.col(failing), pl.col(f"{failing}_reason")
    is_asked = (value.is_not_null() | reason.is_not_null()).any().over("metric")
    known = scores.filter(is_asked).filter(pl.col(scored).is_not_null() & ~pl.col(f"{failing}_is_empty"))
    counts = known.group_by("metric").agg(
        n=value.is_null().sum(), n_of=pl.len(), reasons=reason.fill_null("not in its dataset").filter(value.is_null())
    )
    most = counts.filter(pl.col("n") > MAX_LOST * pl.col("n_of")).sort("n", "metric").tail(1).to_dicts()
    if not most:
        return None
    reasons = Counter(most[0]["reasons"]).most_common()
    return Failed(n=most[0]["n"], n_of=most[0]["n_of"], reasons=tuple(reason for reason, _ in reasons))


def _keep_scored_causes(of_metric: Nights) -> Nights:
    """Drop what keeps runs from being compared where they have no sample that both scored."""
    is_scored = ~np.isnan(of_metric.values)
    has_common = (is_scored & is_scored[-1]).any(axis=1)
    causes = (cause if has else None for cause, has in zip(of_metric.unlike, has_common, strict=True))
    return replace(of_metric, unlike=tuple(causes))


def _compare_columns(
    cells: Sequence[tuple[str | None, Nights, np.ndarray]], settings: ComparisonSettings
) -> list[VariantMetric]:
    """Compare the last run of each cell with all others over the samples of the cell, in one family."""
    columns, unlike, better, scales, firsts = [], [], [], [], []
    for _, of_metric, is_in in cells:
        first = of_metric.values[-1]
        for values, cause in zip(of_metric.values[:-1], of_metric.unlike, strict=False):
            columns.append(np.where(is_in, values - first, np.nan))
            unlike.append(cause)
            better.append(of_metric.better)
            scales.append(find_scale(np.concatenate([first, values])))
            common = first[is_in & ~np.isnan(values - first)]
            firsts.append(float(common.mean()) if len(common) else None)
    if not columns:
        return []
    results = compare_paired(
        np.column_stack(columns),
        cells[0][1].clusters,
        low_is_good=[way == "low" for way in better],
        scales=scales,
        family=[cause is None for cause in unlike],
        is_simultaneous=True,
        seed=settings.seed,
        resamples=settings.resamples,
    )
    differences = iter(
        VariantDifference(paired=leave_side_open(paired, way), common_first=mean, unlike=cause)
        for paired, mean, cause, way in zip(results, firsts, unlike, better, strict=True)
    )
    compared = []
    for value, of_metric, is_in in cells:
        scored = [values[is_in & ~np.isnan(values)] for values in np.roll(of_metric.values, 1, axis=0)]
        compared.append(
            VariantMetric(
                metric=of_metric.metric,
                better=of_metric.better,
                means=tuple(float(values.mean()) if len(values) else None for values in scored),
                n_scored=tuple(len(values) for values in scored),
                differences=tuple(next(differences) for _ in scored[1:]),
                slice=value,
            )
        )
    return compared


def _list_warnings(
    pairs: Sequence[RunPair], names: Sequence[str], n_samples: Sequence[int], nights: Sequence[Nights]
) -> Iterator[str]:
    for place, (pair, name) in enumerate(zip(pairs, names[1:], strict=True)):
        for difference in list_measured_otherwise(pair.base, pair.candidate):
            yield f"{name} and {names[0]} differ in {difference}"
        if metrics := [of_metric.metric for of_metric in nights if of_metric.unlike[place]]:
            yield (
                f"{name} was judged differently than {names[0]}, or by another formula, so better or worse is unknown "
                f"in {list_names(metrics)}"
            )
        if missing := [of.metric for of in nights if np.isnan(of.values[place] - of.values[-1]).all()]:
            yield f"{name} and {names[0]} have no sample that both scored in {list_names(missing)}"
        changed = pair.fetch_changed_inputs(METADATA_INPUTS)
        if n_asked := changed.filter(pl.col("question") | pl.col("ground_truth")).height:
            yield f"{name} has another question or ground truth than {names[0]} in {n_asked:,} samples of the same id"
        if n_samples[place + 1] < n_samples[0]:
            yield f"{name} has {n_samples[place + 1]:,} of the {n_samples[0]:,} samples of {names[0]}"
    for run in (pairs[0].base, *(pair.candidate for pair in pairs)):
        yield from warn_of_status(run)
