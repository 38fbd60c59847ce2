"""A judge that scores otherwise on the whole than it did, though it bears the same name.

Which way a judge wavers is chance: asked again about the same texts it scores as often higher as lower. Where the mean
of the differences is not 0, the judge itself is another, and a difference of two runs is partly its doing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.paired import compare_paired

_RESAMPLES: Final = 2000
_PLACE: Final = "#place"  # the name of no metric


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A metric in which the judge scores otherwise on the whole, asked again about the same texts.

    `difference` is the mean of the second score less the first one over `n_pairs`, with its 95 % interval, by the
    `n_runs` noise runs that are nearest; p_adjusted is so over all metrics and spans of runs that were looked at.
    """

    metric: str
    difference: float
    ci_low: float
    ci_high: float
    p_adjusted: float
    n_pairs: int
    n_runs: int


def find_shifts(differences: pl.DataFrame, noise_run_ids: Sequence[str]) -> list[Shift]:
    """The metrics in which the mean difference of judgements of the same texts is not 0.

    `differences` has a row per noise run, metric and sample, `noise_run_ids` the nearest first. A judge that was
    exchanged last night differs in one noise run, one that was exchanged long ago in all, so that the 1, 2, 4, …
    nearest are looked at, each metric in each span; `compare_paired` adjusts for looking that often. Judgements of one
    sample in several nights are not independent.
    """
    if differences.is_empty():
        return []
    spans = sorted({min(2**power, len(noise_run_ids)) for power in range(len(noise_run_ids).bit_length() + 1)})
    place = {run_id: place for place, run_id in enumerate(noise_run_ids)}
    frame = differences.with_columns(**{_PLACE: pl.col("noise_run_id").replace_strict(place, return_dtype=pl.Int64)})
    wide = frame.pivot("metric", index=["noise_run_id", "sample_id", _PLACE], values="difference")
    metrics = wide.columns[3:]
    values, places = wide.select(metrics).to_numpy().astype(np.float64), wide[_PLACE].to_numpy()
    columns = np.hstack([np.where((places < span)[:, None], values, np.nan) for span in spans])
    clusters = wide["sample_id"].rank("dense").to_numpy().astype(np.int64)
    found = compare_paired(columns, clusters, low_is_good=[False] * columns.shape[1], resamples=_RESAMPLES)
    shifts: dict[str, Shift] = {}
    for number, paired in enumerate(found):
        metric, span = metrics[number % len(metrics)], spans[number // len(metrics)]
        if paired.verdict in ("better", "worse"):
            names = ("difference", "ci_low", "ci_high", "p_adjusted")
            shift = Shift(
                metric=metric, n_pairs=paired.n, n_runs=span, **{name: getattr(paired, name) for name in names}
            )
            shifts[metric] = min(shift, shifts.get(metric, shift), key=lambda one: one.p_adjusted)
    return list(shifts.values())


def describe_shifts(shifts: Sequence[Shift]) -> list[str]:
    """One warning for all of them; none where there are none."""
    if not shifts:
        return []
    named = [
        f"{shift.metric} {abs(shift.difference):.3f} {'higher' if shift.difference > 0 else 'lower'} "
        f"({shift.ci_low:+.3f} to {shift.ci_high:+.3f}; {shift.n_pairs} pairs)"
        for shift in shifts
    ]
    return [
        "the judge has shifted as a whole: asked again about the same texts it scores "
        f"{', '.join(named)}; a change of that size where verdicts were given again is the judge's"
    ]
