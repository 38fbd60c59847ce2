"""Comparisons of two runs as a gate meets them, from numbers that a test writes down or draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evalhouse.tasks.comparing.changes import Part
from evalhouse.tasks.comparing.noise import MetricNoise
from evalhouse.tasks.comparing.paired import Paired, compare_paired
from evalhouse.tasks.comparing.runs import MetricComparison

NO_COUNTS: Mapping[str, int] = {}


def make_comparison(
    difference: float | None,
    low: float | None,
    high: float | None,
    *,
    metric: str = "factual_f1",
    p: float | None = 0.001,
    parts: tuple[Part, ...] = (),
    counts: Mapping[str, int] = NO_COUNTS,
    floor: float | None = None,
) -> MetricComparison:
    """50 samples that both runs scored, all of which moved by default."""
    values = {"n": 50, "n_clusters": 50, "n_higher": 10, "n_lower": 40, "n_base": 50, "n_candidate": 50} | dict(counts)
    n_base, n_candidate = values.pop("n_base"), values.pop("n_candidate")
    paired = Paired(
        **values,
        difference=difference,
        ci_low=low,
        ci_high=high,
        p=p,
        p_adjusted=p,
        is_exact=False,
        verdict="undecided",
    )
    return MetricComparison(
        metric=metric,
        n_base=n_base,
        n_candidate=n_candidate,
        coverage_base=1.0,
        coverage_candidate=1.0,
        mean_base=None,
        mean_candidate=None,
        common_base=None,
        common_candidate=None,
        paired=paired,
        change=None,
        parts=parts,
        better="low" if metric == "hallucination" else "high",
        noise=None if floor is None else MetricNoise(n_judged_again=50, measured=None, floor=floor),
    )


def compare_values(
    differences: Mapping[str, np.ndarray[Any, Any]], floor: float | None = None, resamples: int = 999
) -> dict[str, MetricComparison]:
    """The result of `compare` for these differences, by metric."""
    columns = np.column_stack(list(differences.values()))
    clusters, low_is_good = np.arange(len(columns)), [False] * len(differences)
    found = compare_paired(columns, clusters, low_is_good=low_is_good, resamples=resamples)
    return {
        name: make_comparison(
            one.difference, one.ci_low, one.ci_high, metric=name, p=one.p_adjusted,
            counts={"n": one.n, "n_clusters": one.n_clusters, "n_higher": one.n_higher, "n_lower": one.n_lower,
                    "n_base": one.n, "n_candidate": one.n},
            floor=floor,
        )
        for name, one in zip(differences, found, strict=True)
    }  # fmt: skip
