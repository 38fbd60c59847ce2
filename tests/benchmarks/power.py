"""Measure how often a gate and a comparison find true and false differences, and how often intervals hold the truth.

Everything is drawn at random with known truth; `--runs` is the number of runs behind a figure (a share of 0.05 over
1,000 is off by 0.014 in 19 of 20 cases).

    python tests/benchmarks/power.py --runs 1000
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "helpers"))

from drawn_scores import MEANS, number_documents

from evalhouse.tasks.comparing.intervals import ALPHA, find_interval
from evalhouse.tasks.comparing.paired import Paired, compare_paired

Floats = NDArray[np.float64]

LIMIT = 0.02
"""The drop that a gate allows."""
DRAWS = 1000
NOISE = 0.2
"""The share of scores that the judge draws again each time it is asked."""
SCORES, ODDS = (0.0, 0.5, 0.8, 1.0), (0.15, 0.2, 0.25, 0.4)


def judge(generator: np.random.Generator, truths: Floats) -> Floats:
    """Return the scores of a judge that draws a share of them at random."""
    again = generator.random(truths.shape) < NOISE
    return np.where(again, generator.choice(SCORES, p=ODDS, size=truths.shape), truths)


@dataclass(frozen=True)
class Cell:
    """Samples, and the share of them that the candidate breaks; `drop` is the mean of what a judge sees of it."""

    n: int
    broken: float

    @property
    def drop(self) -> float:
        """The drop of the mean score."""
        return self.broken * (1 - NOISE) * float(np.dot(SCORES, ODDS))


CELLS = [
    *(Cell(n, 0.0) for n in (20, 50, 80, 200)),
    *(Cell(n, broken) for n, broken in ((50, 0.29), (80, 0.29), (200, 0.145))),
]


def is_failed(paired: Paired) -> bool:
    """Apply the rule of `gate_checks`: the whole interval is beyond the limit, and the drop significant."""
    return paired.ci_high is not None and -paired.ci_high > LIMIT and (paired.p_adjusted or 0.0) <= ALPHA


def measure_gate(cell: Cell, n_runs: int) -> list[str]:
    """One row: the share of gates that fail."""
    generator = np.random.default_rng([cell.n, round(1000 * cell.broken)])
    n_failed = 0
    for _ in range(n_runs):
        truths = generator.choice(SCORES, p=ODDS, size=(cell.n, 1))
        later = np.where(generator.random(truths.shape) < cell.broken, 0.0, truths)
        differences = judge(generator, later) - judge(generator, truths)
        (paired,) = compare_paired(differences, np.arange(cell.n), low_is_good=[False], resamples=DRAWS)
        n_failed += is_failed(paired)
    return [f"{cell.n}", f"{cell.drop:.3f}", f"{n_failed / n_runs:.3f}"]


def draw_metrics(generator: np.random.Generator, n: int, worse: float) -> Floats:
    """Differences of 18 metrics, of which nine go by the retrieval and nine by the answer, copies or nearly so.

    Retrieval flips for 15 % of the samples either way, and more often the wrong way by the share `worse`.
    """
    retrieval = generator.choice([-1.0, 0.0, 1.0], p=[0.15 + worse, 0.7 - worse, 0.15], size=(n, 1))
    answer = generator.choice([-1.0, -0.5, 0.0, 0.5, 1.0], p=[0.05, 0.15, 0.6, 0.15, 0.05], size=(n, 1))
    sizes = generator.choice([0.25, 0.5, 1.0], size=(n, 18))
    is_copy = np.arange(18) % 3 == 0
    strength = np.where(is_copy, 1.0, sizes)
    return np.hstack([np.repeat(retrieval, 9, axis=1), np.repeat(answer, 9, axis=1)]) * strength


def measure_many(n: int, worse: float, n_runs: int) -> list[str]:
    """One row: the share of comparisons that find anything among 18 metrics."""
    generator = np.random.default_rng([n, round(1000 * worse)])
    n_found = 0
    for seed in range(n_runs):
        differences = draw_metrics(generator, n, worse)
        found = compare_paired(differences, np.arange(n), low_is_good=[False] * 18, seed=seed, resamples=DRAWS)
        n_found += any(paired.verdict in ("better", "worse") for paired in found)
    return [f"{n}", f"{worse:.2f}", f"{n_found / n_runs:.3f}"]


def measure_mean(name: str, n: int, n_runs: int) -> list[str]:
    """One row: how often the interval of a mean holds the truth, and how wide it is."""
    truth = MEANS[name].mean
    values = MEANS[name].draw(np.random.default_rng([n, len(name)]), (n, n_runs))
    found = find_interval(values, number_documents(n, MEANS[name].size))
    holds = (found.low <= truth + 1e-12) & (truth <= found.high + 1e-12)
    shares = [float(holds.mean()), float((found.high - found.low).mean())]
    return [name, f"{n}", *(f"{share:.3f}" for share in shares)]


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown, each row when it is ready."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'|'.join(['---:'] * len(columns))}|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs behind each figure")
    n_runs = parser.parse_args().runs
    print_table(
        f"Gates that fail, of one metric at a limit of {LIMIT}; the judge draws {NOISE:.0%} of its scores again",
        ["samples", "true drop", "fail"],
        (measure_gate(cell, n_runs) for cell in CELLS),
    )
    print_table(
        "Comparisons that find anything among 18 dependent metrics",
        ["samples", "retrieval worse by", "find one"],
        (measure_many(n, worse, n_runs) for n in (60, 120) for worse in (0.0, 0.10, 0.15)),
    )
    print_table(
        "Means: intervals that hold the truth, and their width",
        ["scores", "samples", "holds", "width"],
        (measure_mean(name, n, 4 * n_runs) for name in MEANS for n in (20, 50, 200)),
    )


if __name__ == "__main__":
    main()
