"""Slices of a run: the samples that share a value of one metadata column, with means, intervals and differences.

A bot can get worse for one language, customer or kind of question while its mean over all samples does not move. Each
slice has the interval of a mean over its samples alone, and two runs are compared slice by slice: p is adjusted over
all slices and metrics at once (`paired`), so that of many slices that did not change hardly ever one seems to have.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from evalhouse.tasks.comparing.changes import PairedSamples, find_changed_inputs, join_inputs
from evalhouse.tasks.comparing.gate_checks import Score, SideBySide, compare_with_mean
from evalhouse.tasks.comparing.intervals import find_mean_interval
from evalhouse.tasks.comparing.noise import find_scale
from evalhouse.tasks.comparing.paired import compare_paired, is_sampled
from evalhouse.tasks.comparing.runs import (
    Comparison,
    ComparisonError,
    ComparisonSettings,
    MetricComparison,
    build_columns,
    describe_column,
    fetch_scores,
    find_clusters,
    leave_side_open,
)
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

MAX_SLICES: Final = 50
"""Values of a column beyond which a table by value shows nothing any more."""
_MAX_NAMED: Final = 3
BySlice = dict[str, dict[str, MetricComparison]]
"""Comparisons by value of the column and metric."""


@dataclass(frozen=True, kw_only=True)
class SliceMean(Score):
    """One metric over the samples that have the value `slice` in the column `by`."""

    by: str
    slice: str
    metric: str


def find_slices(warehouse: Warehouse, run: RunRow, column: str) -> dict[str, list[str]]:
    """Return the ids of a run's samples by value of a metadata column, the largest slice first.

    Samples without a value are in no slice. Raises ComparisonError for a column that no sample has, for one of more
    than MAX_SLICES values, and for a run that judged a part of its dataset, whose plain means would mislead.
    """
    if is_sampled(run):
        raise ComparisonError(
            f"slices by {column}: run {run.run_id} judged a part of its dataset, picked with unequal probabilities, so "
            "that means of slices would mislead; run it without --sample-budget"
        )
    pointer = "/" + column.replace("~", "~0").replace("/", "~1")
    slices: dict[str, list[str]] = {}
    for sample_id, value in warehouse.fetch("slices/values", run_id=run.run_id, pointer=pointer).iter_rows():
        slices.setdefault(value, []).append(sample_id)
    if not slices:
        rows = warehouse.fetch_rows("slices/columns", run_id=run.run_id, most=run.n_samples or 0)
        columns = [str(row["name"]) for row in rows]
        known = f"its columns are {list_names(columns)}" if columns else "its dataset has no further columns"
        raise ComparisonError(f"no sample of run {run.run_id} has a metadata column {column!r}; {known}")
    if len(slices) > MAX_SLICES:
        raise ComparisonError(
            f"column {column} has {len(slices):,} values in run {run.run_id}, and at most {MAX_SLICES} can be shown; "
            "add a column with fewer values to the dataset, such as ranges or groups of these"
        )
    return dict(sorted(slices.items(), key=lambda item: (-len(item[1]), item[0])))


def measure_slices(
    warehouse: Warehouse, run: RunRow, column: str, metrics: Collection[str], *, cluster: str | None = None
) -> list[SliceMean]:
    """Return the mean of each metric in each slice, slice by slice; raises as `find_slices` and `find_clusters`."""
    slices = find_slices(warehouse, run, column)
    pair = RunPair(warehouse, run, run)
    samples = PairedSamples(pair.fetch("samples"))
    places = find_clusters(pair, samples, cluster).places
    stored = {str(row["metric"]): row for row in warehouse.fetch_rows("gate/scores", run_id=run.run_id)}
    scores = pair.fetch("scores").partition_by("metric", as_dict=True)
    values = {}
    for key, rows in scores.items():
        values[str(key[0])] = samples.place_values(rows["sample_id"].to_list(), rows["candidate"])
    means = []
    for value, sample_ids in slices.items():
        is_in = samples.flag(sample_ids)
        for metric in metrics:
            # A metric that left no row was not computed for any sample.
            of_metric = values.get(metric, np.full(len(is_in), np.nan))
            of_run = stored.get(metric, {"minimum": 0.0, "better": "high"})
            is_scored = is_in & ~np.isnan(of_metric)
            scored = of_metric[is_scored]
            groups = np.unique(places[is_scored], return_inverse=True)[1].astype(np.int64)
            minimum = float(str(of_run["minimum"]))
            low, high = (find_mean_interval(scored, groups, minimum=minimum) if len(scored) else None) or (None, None)
            means.append(
                SliceMean(
                    by=column,
                    slice=value,
                    metric=metric,
                    better=cast(Better, of_run["better"]),
                    n_samples=len(sample_ids),
                    n_scored=len(scored),
                    n_applicable=len(scored),
                    mean=float(scored.mean()) if len(scored) else None,
                    ci_low=low,
                    ci_high=high,
                )
            )
    return means


def compare_slices(pair: RunPair, settings: ComparisonSettings, column: str, metrics: Collection[str]) -> BySlice:
    """Compare two runs in each slice of the candidate; raises as `find_slices`.

    Each slice and metric is one column of the same test, so that p is adjusted over all of them.
    """
    of_base = find_slices(pair.warehouse, pair.base, column)  # refuses a base that judged a part, or has no such column
    slices = find_slices(pair.warehouse, pair.candidate, column)
    samples = PairedSamples(pair.fetch("samples"))
    inputs = find_changed_inputs(pair, samples)
    built = list(build_columns(pair, samples, fetch_scores(pair), pair.fetch("changed_judges"), inputs))
    changed = join_inputs(inputs)
    flags = {value: samples.flag(sample_ids) for value, sample_ids in slices.items()}
    cells = []
    for of_metric in built:
        for value, is_in in flags.items() if of_metric.metric in metrics else ():
            of_both = (of_metric.base, of_metric.candidate, of_metric.moves)
            base, candidate, moves = (np.where(is_in, values, np.nan) for values in of_both)
            cells.append((value, replace(of_metric, base=base, candidate=candidate, moves=moves)))
    if not cells:
        return {}
    clusters = find_clusters(pair, samples, settings.cluster)
    results = compare_paired(
        np.column_stack([cell.moves for _, cell in cells]),
        clusters.places,
        low_is_good=[cell.better == "low" for _, cell in cells],
        scales=[find_scale(np.concatenate([cell.base, cell.candidate])) for _, cell in cells],
        is_found=clusters.is_found,
        seed=settings.seed,
        resamples=settings.resamples,
    )
    compared: BySlice = {value: {} for value in slices}
    scored = {of_metric.metric: ~np.isnan(of_metric.base) for of_metric in built}
    for (value, cell), paired in zip(cells, results, strict=True):
        described = describe_column(
            cell,
            leave_side_open(paired, cell.better),
            in_base=samples.in_base & flags[value],
            in_candidate=samples.in_candidate & flags[value],
            changed=changed,
        )
        # The base's own slice may have samples that the candidate has not.
        n_base = int((scored[cell.metric] & samples.flag(of_base.get(value, ()))).sum())
        n_base = max(described.n_base, n_base)
        compared[value][cell.metric] = replace(described, n_base=n_base, cluster=clusters.column)
    return compared


def compare_slices_with_mean(
    laid: SideBySide, slices: Mapping[str, Collection[str]], settings: ComparisonSettings
) -> BySlice:
    """Compare the last run with the mean of the others in each slice; see `gate_checks.compare_with_mean`."""
    keys: dict[str, tuple[str, str]] = {}  # by a name for each slice and metric
    nights = {}
    for value, sample_ids in slices.items():
        members = frozenset(sample_ids)
        is_in = np.array([sample_id in members for sample_id in laid.sample_ids], dtype=bool)
        for metric, of_metric in laid.nights.items():
            key = f"{len(keys)}"
            keys[key] = value, metric
            values = np.where(is_in, of_metric.values, np.nan)
            # As many as if the slices of the runs before had the same sizes.
            nights[key] = replace(
                of_metric, metric=key, values=values, n_before=round(of_metric.n_before * is_in.mean())
            )
    compared: BySlice = {value: {} for value in slices}
    for of_cell in compare_with_mean(replace(laid, nights=nights), settings).metrics:
        value, metric = keys[of_cell.metric]
        compared[value][metric] = replace(of_cell, metric=metric)
    return compared


def describe_fallen(column: str, compared: BySlice, whole: Comparison) -> Iterator[str]:
    """Yield half a sentence on the slices that are clearly worse in a metric in which the whole is not."""
    is_worse = {of_metric.metric: of_metric.paired.verdict == "worse" for of_metric in whole.metrics}
    fallen = [
        value
        for value, by_metric in compared.items()
        if any(
            of_metric.paired.verdict == "worse" and not is_worse.get(name, False)
            for name, of_metric in by_metric.items()
        )
    ]
    if fallen:
        verb = "is" if len(fallen) == 1 else "are"
        yield f"{column} {list_names(fallen, _MAX_NAMED)} {verb} worse, though the whole is not"
