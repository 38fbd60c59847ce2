"""Comparing runs of which one judged a part of its dataset: what judging all in both would have given.

Samples were picked with unequal probabilities, so that a plain mean over those that both runs scored would lean to the
samples in doubt. The difference is that of both runs' estimates (the view `sampled_means`), and its variance the sum of
theirs: where the same samples were picked in both, the interval is wider than it had to be, never narrower. What is
listed by sample stays what it is; what would add samples up to a mean is left out.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from evalhouse.tasks.comparing.bootstrap import ALPHA
from evalhouse.tasks.comparing.paired import ROUNDING, Paired, Verdict
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow

_NORMAL = NormalDist()


def is_sampled(run: RunRow) -> bool:
    """Whether a run judged a part of its dataset."""
    return run.config.get("sample_budget") is not None


def warn_of_sampling(pair: RunPair) -> Iterator[str]:
    """What to know of a pair of which a run judged a part."""
    for run in (pair.base, pair.candidate):
        if is_sampled(run):
            yield (
                f"run {run.run_id} judged a part of its dataset ({run.n_samples:,} samples): means and differences are "
                "estimates for all of it, samples and flips are those that were judged"
            )


def read_estimates(pair: RunPair) -> Mapping[str, Mapping[str, Any]] | None:
    """By metric both runs' means and the variance of their difference; None where both judged all."""
    if not (is_sampled(pair.base) or is_sampled(pair.candidate)):
        return None
    runs = {"base": pair.base.run_id, "candidate": pair.candidate.run_id}
    return {str(row["metric"]): row for row in pair.warehouse.read_rows(read_query("run_pairs/sampled"), runs)}


def find_difference(row: Mapping[str, Any]) -> float:
    """The difference of two estimates."""
    difference = float(row["candidate"] - row["base"])
    return 0.0 if abs(difference) < ROUNDING else difference


def decide(paired: Paired, difference: float, variance: float | None, *, better: Better) -> Paired:
    """A difference with its normal interval and p; without a variance nothing is decided."""
    if variance is None:
        return replace(
            paired, difference=difference, ci_low=None, ci_high=None, p=None, p_adjusted=None, verdict="undecided"
        )
    error = math.sqrt(variance) if variance > ROUNDING**2 else 0.0
    half = _NORMAL.inv_cdf(1 - ALPHA / 2) * error
    p = 2 * (1 - _NORMAL.cdf(abs(difference) / error)) if error else float(difference == 0)
    verdict: Verdict = "undecided"
    if abs(difference) > half:
        verdict = "better" if (difference > 0) == (better == "high") else "worse"
    return replace(
        paired,
        difference=difference,
        ci_low=difference - half,
        ci_high=difference + half,
        p=p,
        p_adjusted=p,
        is_exact=False,
        verdict=verdict,
    )
