"""Comparing runs of which one judged a part of its dataset: what judging all in both would have given.

Samples were picked with unequal probabilities, so that a plain mean over those that both runs scored would lean to the
samples in doubt. The difference is that of both runs' estimates (the view `sampled_means`). Where both picked the same
samples by the same probabilities it rests on what moved in these, and its variance is that of the moves; else the picks
have nothing to do with each other, and it is the sum of both (`queries/run_pairs/sampled.sql`). What is listed by
sample stays what it is; what would add samples up to a mean is left out.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from evalhouse.tasks.comparing.bootstrap import ALPHA, find_student_p, find_student_point
from evalhouse.tasks.comparing.paired import ROUNDING, Paired, Verdict
from evalhouse.tasks.comparing.wilson import FEW_MOVED
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow

_MOST_DEGREES: Final = 1e6


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
    """By metric both runs' means, the variance of their difference and what it rests on; None where both judged all."""
    if not (is_sampled(pair.base) or is_sampled(pair.candidate)):
        return None
    return {str(row["metric"]): row for row in pair.read_estimates()}


def decide(paired: Paired, row: Mapping[str, Any], *, better: Better, scale: float) -> Paired:
    """The difference of two estimates with its interval and p by Student's t; without a variance nothing is decided.

    The degrees of freedom are those of the variance, as Satterthwaite has them (1946, Biometrics Bulletin 2(6)).
    Where the same samples were picked and hardly any moved, the moves say little of the others: as many may have moved
    by the whole `scale` as could without one being picked, and p is that of the moves' signs.
    """
    difference, variance = float(row["candidate"] - row["base"]), row["variance"]
    difference = 0.0 if abs(difference) < ROUNDING else difference
    if variance is None:
        return replace(
            paired, difference=difference, ci_low=None, ci_high=None, p=None, p_adjusted=None, verdict="undecided"
        )
    error = math.sqrt(variance) if variance > ROUNDING**2 else 0.0
    degrees = 2 * variance**2 / max(row["spread"], 2 * variance**2 / _MOST_DEGREES) if error else _MOST_DEGREES
    half = find_student_point(1 - ALPHA / 2, degrees) * error
    p = find_student_p(difference / error, degrees) if error else float(difference == 0)
    if row["is_paired"] and paired.n_higher + paired.n_lower < FEW_MOVED:
        half, p = half + row["unseen"] * scale, 1.0 if paired.p is None else max(p, paired.p)
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
