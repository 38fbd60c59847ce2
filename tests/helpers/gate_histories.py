"""Histories of nights as a gate meets them: a bot that is broken, one that gets worse slowly, and one that stays.

A sample has a true score out of five grades. Each night the judge gives a share of the samples another one, drawn from
all grades; so a night's mean is about 0.017 off (standard error, 200 samples, 20 % drawn). What is broken has a true
score of 0. The gate is the product's own, over arrays instead of a warehouse: `check_drops`, `check_trends`, and which
run becomes a baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from warehouse_runs import make_run

from evalhouse.flows.results.baseline import make_decision
from evalhouse.tasks.comparing.changes import Part
from evalhouse.tasks.comparing.gate_checks import Check, Nights, check_drops, check_trends, is_passed, pick_nights
from evalhouse.tasks.comparing.noise import MetricNoise
from evalhouse.tasks.comparing.paired import Paired, compare_paired
from evalhouse.tasks.comparing.runs import MetricComparison

Floats = NDArray[np.float64]
METRIC = "factual_f1"
GRADES = {
    "graded": ([0.0, 0.25, 0.5, 0.75, 1.0], [0.22, 0.10, 0.13, 0.15, 0.40]),
    "yes or no": ([0.0, 1.0], [0.3, 0.7]),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """A simulated history: the number of samples, their grades, and the share that the judge redraws each night."""

    n_samples: int = 200
    noise: float = 0.2
    grades: str = "graded"

    def draw(self, generator: np.random.Generator) -> Floats:
        """True scores, or what the judge draws in their place."""
        values, shares = GRADES[self.grades]
        return generator.choice(values, p=shares, size=self.n_samples)

    def judge(self, true: Floats, generator: np.random.Generator) -> Floats:
        """A night's scores."""
        return np.where(generator.random(self.n_samples) < self.noise, self.draw(generator), true)

    def stay(self, n_nights: int, generator: np.random.Generator) -> Iterator[Floats]:
        """A bot that does not change."""
        true = self.draw(generator)
        for _ in range(n_nights):
            yield self.judge(true, generator)

    def break_down(
        self, share: float, *, nights: range, n_nights: int, generator: np.random.Generator
    ) -> Iterator[Floats]:
        """A bot of which a share of the answers is broken on these nights."""
        true = self.draw(generator)
        broken = np.where(generator.permutation(self.n_samples) < share * self.n_samples, 0.0, true)
        for night in range(n_nights):
            yield self.judge(broken if night in nights else true, generator)

    def get_worse(self, loss: float, *, after: int, n_nights: int, generator: np.random.Generator) -> Iterator[Floats]:
        """A bot that loses so much of its mean score every night, sample by sample, after so many nights."""
        true = self.draw(generator)
        for night in range(n_nights):
            if night >= after:
                self._lose(true, loss / (1 - self.noise) * self.n_samples, generator)
            yield self.judge(true, generator)

    def _lose(self, true: Floats, points: float, generator: np.random.Generator) -> None:
        """Break samples until so many points are lost; the last one with the chance that makes the mean right."""
        for sample in generator.permutation(np.flatnonzero(true)):
            if points < true[sample] and generator.random() > points / true[sample]:
                return
            points -= true[sample]
            true[sample] = 0.0
            if points <= 0:
                return


@dataclass
class Gate:
    """A suite's gate over the nights of one history, with what it has let through."""

    limit: float = 0.02
    against: str = "passed"
    k: int = 5
    trend: float | None = None
    resamples: int = 2_000
    nights: list[Floats] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    baselines: list[int] = field(default_factory=list)

    def decide(self, scores: Floats) -> dict[str, str]:
        """The outcome of the gate, and of each kind of check."""
        self.nights.append(scores)
        checks = [*self._check_drop(), *self._check_trend()]
        outcome = "passed" if is_passed(checks, undecided="pass") else "failed"
        document = {
            "outcome": outcome,
            "undecided": "pass",
            "run": {"run_id": "night"},
            "baseline": {"against": self.against, "run_ids": []},
            "checks": [asdict(check) for check in checks],
        }
        if outcome == "passed":
            self.passed.append(len(self.nights) - 1)
        if make_decision(document, "suite").is_baseline:
            self.baselines.append(len(self.nights) - 1)
        return {"gate": outcome, **{check.kind: check.outcome for check in checks}}

    def accept(self) -> None:
        """Take the last night for the new baseline: what came before is forgotten."""
        self.passed = [len(self.nights) - 1]
        self.baselines = list(self.passed)

    def _list_bases(self) -> Sequence[int]:
        match self.against:
            case "previous_any":
                return [len(self.nights) - 2] if len(self.nights) > 1 else []
            case "mean_of_passed":
                return self.baselines[-self.k :]
            case _:
                return self.baselines[-1:]

    def _check_drop(self) -> list[Check]:
        bases = self._list_bases()
        if not bases:
            return []
        differences = self.nights[-1] - np.mean([self.nights[night] for night in bases], axis=0)
        return check_drops({METRIC: self.limit}, compare_values({METRIC: differences}, resamples=self.resamples))

    def _check_trend(self) -> list[Check]:
        if self.trend is None:
            return []
        runs = [make_run(str(night), minute=night * 1440) for night in (*self.passed, len(self.nights) - 1)]
        runs = [*pick_nights(runs[:-1]), runs[-1]]
        nights = Nights(
            metric=METRIC,
            runs=tuple(runs),
            values=np.array([self.nights[int(run.run_id)] for run in runs]),
            clusters=np.arange(len(self.nights[-1])),
            unlike=(None,) * len(runs),
        )
        return check_trends({METRIC: self.trend}, {METRIC: nights}, resamples=self.resamples)


def run_nights(gate: Gate, nights: Iterator[Floats]) -> list[dict[str, str]]:
    """The outcomes of a history, night by night."""
    return [gate.decide(scores) for scores in nights]


def find_first(outcomes: Sequence[dict[str, Any]], kind: str) -> int | None:
    """The first night on which something failed; None where none did."""
    return next((night for night, outcome in enumerate(outcomes) if outcome.get(kind) == "failed"), None)


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
