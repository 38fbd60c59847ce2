"""The picking of the samples that are judged, when a budget of samples is set: with known, unequal probabilities.

Every sample has a signal for each metric: its score in the latest earlier run of the same suite, or dataset, that
scored it, else a guess from its texts by the lexical rules. Half of the probability is spread evenly, so that every
sample can be picked; the other half goes where a score is hardest to foretell: to signals in the middle of the scale,
to samples whose texts changed since they were scored, and to those whose scores differed from run to run. As many
samples as the budget has are drawn, neither more nor fewer, by the pivotal method (Deville and Tillé 1998, Biometrika
85): pairs fight until all is 0 or 1, in an order drawn by the run's seed, and each sample keeps the probability it
began with.

Probabilities and signals of all samples are rows (`sample_picks`, `sample_signals`); the view `sampled_means` estimates
from them the means over all samples.
"""

import hashlib
import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from evalhouse.tasks.lexical.match import compare_statements, rate_contexts, score_contexts
from evalhouse.tasks.lexical.split import split_statements
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.metric_files import MetricFile
from evalhouse.warehouse.rows.samples import EarlierScore, Staging, StoredSample, fetch_earlier_scores
from evalhouse.warehouse.store import Warehouse

LEXICAL_ORIGIN: Final = "lexical"
_EVEN: Final = 0.5  # the share of the probability that all samples have alike
_AT_ONCE: Final = 500
# The standard deviation that a score is thought to have about its signal: at least, and where the texts changed.
_MIN_DEVIATION: Final = 0.1
_CHANGED: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Signal:
    """The expected score of a sample before it is judged. `origin` is the run that it stems from, or `lexical`."""

    metric: str
    value: float
    origin: str


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A sample of the dataset: the probability that it is judged, whether it is, and its signals."""

    ordinal: int
    sample_id: str
    probability: float
    picked: bool
    signals: Sequence[Signal]


def pick_staged(
    warehouse: Warehouse, run_id: str, settings: RunSettings, metrics: Sequence[MetricFile], staging: Staging
) -> list[Pick]:
    """Return the picks of a run over its staged dataset."""
    names = [metric.name for metric in metrics]
    earlier = (
        fetch_earlier_scores(
            warehouse,
            run_id,
            suite=settings.suite,
            variant=settings.variant,
            dataset=settings.dataset,
            metrics=names,
        )
        if warehouse.exists()
        else {}
    )
    samples = (
        sample
        for first in range(1, staging.n_rows + 1, _AT_ONCE)
        for sample in staging.read_between(first, first + _AT_ONCE - 1)
    )
    return pick_samples(
        samples, metrics, earlier, budget=settings.sample_budget or staging.n_rows, seed=settings.sample_seed
    )


def pick_samples(
    samples: Iterator[StoredSample],
    metrics: Sequence[MetricFile],
    earlier: Mapping[str, Mapping[str, EarlierScore]],
    *,
    budget: int,
    seed: int,
) -> list[Pick]:
    """Return all samples, `budget` of them picked. `earlier` has the scores of earlier runs by sample and metric."""
    ids: list[tuple[int, str]] = []
    signals: list[list[Signal]] = []
    sizes: list[float] = []
    for sample in samples:
        of_sample, before = [], earlier.get(sample.sample_id, {})
        doubts: list[float] = []  # by metric how far the score may lie from its signal
        guesses = guess_scores(sample) if any(metric.name not in before for metric in metrics) else {}
        for metric in metrics:
            if (score := before.get(metric.name)) is not None:
                value, origin = min(1.0, max(0.0, score.value)), score.run_id
                doubt = _CHANGED if score.input_hash != sample.input_hash else math.sqrt(value * (1 - value))
                doubts.append(max(doubt, _MIN_DEVIATION) + score.spread)
            else:
                # The lexical rules' mean over the steps that the metric rests on.
                of_steps = [guesses[step] for step in metric.needs if step in guesses] or list(guesses.values())
                guess = fmean(of_steps) if of_steps else 0.5
                value, origin = 1 - guess if metric.better == "low" else guess, LEXICAL_ORIGIN
                doubts.append(max(math.sqrt(value * (1 - value)), _MIN_DEVIATION))
            of_sample.append(Signal(metric=metric.name, value=value, origin=origin))
        ids.append((sample.ordinal, sample.sample_id))
        signals.append(of_sample)
        sizes.append(sum(doubts) / len(doubts) if doubts else _MIN_DEVIATION)
    probabilities = spread(sizes, budget)
    picked = draw(probabilities, make_dice(seed, probabilities))
    return [
        Pick(
            ordinal=ordinal, sample_id=sample_id, probability=probabilities[place], picked=place in picked,
            signals=signals[place],
        )
        for place, (ordinal, sample_id) in enumerate(ids)
    ]  # fmt: skip


def make_dice(seed: int, probabilities: Sequence[float]) -> random.Random:
    """Return the generator that draws picks: the same for the same seed and probabilities, and only for these.

    Tonight's probabilities rest on what the samples picked last night scored. Drawn by the same numbers, tonight's
    picks would be likelier to be the same than their probabilities, and the estimate would be biased.
    """
    digest = hashlib.sha256(array("d", probabilities).tobytes()).hexdigest()
    return random.Random(f"{seed}/{digest}")


def spread(sizes: Sequence[float], budget: int) -> list[float]:
    """Return probabilities that sum to the budget: half spread evenly, half by size; none above 1."""
    n, total = len(sizes), sum(sizes)
    if budget >= n:
        return [1.0] * n
    shares = [_EVEN / n + (1 - _EVEN) * (size / total if total else 1 / n) for size in sizes]
    certain: set[int] = set()
    while True:
        left = sum(share for place, share in enumerate(shares) if place not in certain)
        scale = (budget - len(certain)) / left
        further = {place for place, share in enumerate(shares) if place not in certain and share * scale >= 1}
        if not further:
            return [1.0 if place in certain else share * scale for place, share in enumerate(shares)]
        certain |= further


def draw(probabilities: Sequence[float], rng: random.Random) -> set[int]:
    """Return the places that are drawn, each by its probability; as many as the probabilities sum to."""
    picked = {place for place, probability in enumerate(probabilities) if probability >= 1}
    order = [place for place in range(len(probabilities)) if place not in picked]
    rng.shuffle(order)
    fighter, strength = -1, 0.0
    for place in order:
        other = probabilities[place]
        if fighter < 0:
            fighter, strength = place, other
            continue
        both = strength + other
        if both < 1:
            fighter, strength = (fighter if rng.random() * both < strength else place), both
        else:
            # One of them is drawn, the other fights on with the remainder.
            loser = fighter if rng.random() * (2 - both) < 1 - strength else place
            picked.add(place if loser == fighter else fighter)
            fighter, strength = loser, both - 1
    if fighter >= 0 and strength > 0.5:  # sums of shares end a hair off a whole number
        picked.add(fighter)
    return picked


def guess_scores(sample: StoredSample) -> Mapping[str, float]:
    """Return by step how well a sample does by the lexical rules, from 0 to 1: shares of words, not of verdicts."""
    answer, truth = split_statements(sample.answer or ""), split_statements(sample.ground_truth or "")
    guesses: dict[str, float] = {}
    if answer and truth:
        compared = compare_statements(sample.question, answer, truth)
        guesses["classify"] = fmean([support.score for support in (*compared.answer, *compared.ground_truth)])
    if sample.contexts:
        for step, statements in (("attribute_answer", answer), ("attribute_ground_truth", truth)):
            if statements:
                scored = score_contexts(statements, sample.contexts, sample.question)
                guesses[step] = fmean([max(one.score for one in supports) for supports in scored])
        rated = rate_contexts(sample.question, sample.ground_truth or "", sample.contexts)
        guesses["rank"] = fmean([one.score for one in rated])
    return guesses


def list_rows(run_id: str, picks: Sequence[Pick]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of `sample_picks` and of `sample_signals`."""
    rows = [
        {
            "run_id": run_id,
            "sample_id": pick.sample_id,
            "ordinal": pick.ordinal,
            "probability": pick.probability,
            "picked": pick.picked,
        }
        for pick in picks
    ]
    signals = [
        {"run_id": run_id, "sample_id": pick.sample_id, "metric": one.metric, "signal": one.value, "origin": one.origin}
        for pick in picks
        for one in pick.signals
    ]
    return rows, signals
