"""Several runs of one series laid side by side, sample by sample: what a trend and a baseline of several runs rest on.

The run at hand comes last, and its samples alone count: those that are gone tell nothing of it. A run that was judged
otherwise (another judge, model, prompt, setting or formula) is known as such, metric by metric.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.bootstrap import Floats, Integers
from evalhouse.tasks.comparing.noise import find_scale, is_judged_alike
from evalhouse.tasks.comparing.paired import Paired, compare_paired
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
