"""The judge's noise: how large a change of a mean it makes, and whether the judge as a whole has shifted.

A noise run judges some samples of a run again, with every request sent again. Each sample then has two scores that
only the judge's randomness can separate, and Σd² over the pairs measures it. The difference of two runs holds the same
randomness, once for each common sample that was not judged by the very same replies: that makes the floor, the largest
change of the mean that noise alone would reach in 95 of 100 comparisons. `flows/run/again.py` makes the runs; the
judge's noise comes from the noise runs of the candidate's series that were judged as the candidate was: by the same
judge, model, settings, prompts and formula.

The floor explains a change and decides nothing: the interval of a change is made of differences with the judge's noise
in them, so that it is as wide as that noise makes it. An interval of two runs cannot show a judge whose scores differ
on the whole from what they were, as when its provider has exchanged the model behind a name. The noise runs show it:
there the texts are the same, and the mean of d is not 0.

How many questions it takes to see a drop follows from what the scores vary by. The view `noise_components` separates
the variance of a run's scores into that of its questions, its bot and its judge (formulas in
`warehouse/queries/repeats/components.sql`). Two runs are compared question by question, so that the questions' variance
cancels out. The difference d of one question's scores on two nights has

    var(d) = 2 W / a + t

- W is the variance between answers to one question, including the judge's readings of different answers; what the two
  nights judged by the very same replies differs by nothing, in W as in d. Where a answers to each question are averaged
  on both nights it is W / a.
- t is the variance of the drop itself over the questions. Of a drop of the mean by δ the most that it can be, with
  scores on a scale of width c of which none rises, is δ (c - δ): few questions lose all they can. It is taken to be
  that.

With n questions a drop δ of the mean is found by a two-sided test at 5 % with a given power, by the normal
approximation, where n = (z₀.₉₇₅ + z_power)² var(d) / δ² (Cohen 1988, Statistical Power Analysis for the Behavioral
Sciences, chapter 2). More votes make the judge's part of W smaller; how much depends on how its errors depend on each
other, so the most they can do is reported: W without that part.
"""

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from math import ceil, sqrt
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from scipy.special import betaincinv, stdtrit

from evalhouse.tasks.comparing import POWER
from evalhouse.tasks.comparing.changes import Flags, is_changed_everywhere, list_call_steps
from evalhouse.tasks.comparing.intervals import ALPHA, NORMAL, Floats, Integers
from evalhouse.tasks.comparing.paired import compare_paired
from evalhouse.tasks.judge.protocol import is_fixed, list_judges
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.rows.samples import fetch_asked

_RESAMPLES: Final = 2000
_PLACE: Final = "#place"  # a metric never has this name


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A metric in which the judge's scores differ on the whole when it is asked again about the same texts.

    `difference` is the mean of the second score less the first one over `n_pairs`, with its 95 % interval, by the
    `n_runs` noise runs that are nearest; p_adjusted is adjusted over all metrics and spans of runs that were tested.
    """

    metric: str
    difference: float
    ci_low: float
    ci_high: float
    p_adjusted: float
    n_pairs: int
    n_runs: int


def find_shifts(differences: pl.DataFrame, noise_run_ids: Sequence[str]) -> list[Shift]:
    """Return the metrics in which the mean difference of judgements of the same texts is not 0.

    `differences` has a row per noise run, metric and sample, `noise_run_ids` the nearest first. A judge that was
    exchanged last night differs in one noise run, one that was exchanged long ago in all, so that the 1, 2, 4, …
    nearest are tested, each metric in each span; `compare_paired` adjusts for testing that often. Judgements of one
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
    results = compare_paired(columns, clusters, low_is_good=[False] * columns.shape[1], resamples=_RESAMPLES)
    shifts: dict[str, Shift] = {}
    for number, paired in enumerate(results):
        metric, span = metrics[number % len(metrics)], spans[number // len(metrics)]
        if paired.verdict in ("better", "worse"):
            names = ("difference", "ci_low", "ci_high", "p_adjusted")
            shift = Shift(
                metric=metric, n_pairs=paired.n, n_runs=span, **{name: getattr(paired, name) for name in names}
            )
            if metric not in shifts or shift.p_adjusted <= shifts[metric].p_adjusted:
                shifts[metric] = shift
    return list(shifts.values())


def describe_shifts(shifts: Sequence[Shift]) -> list[str]:
    """Return one warning for all shifts; none without a shift."""
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


MIN_SAMPLES: Final = 10
"""The smallest number of samples that a noise run judges again, where there are so many."""
POOLED_RUNS: Final = 10
"""The number of a series' newest noise runs that a floor rests on: older ones do not measure today's judge."""
_OTHER_YARDSTICKS: Final = frozenset(("judge", "formula"))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One metric over pairs of judgements of the same sample: `n_changed` of `n_pairs` gave another score.

    `sum_squares` is Σd² of the scores' differences, `n_runs` the number of noise runs that made the pairs.
    """

    n_pairs: int
    n_changed: int
    sum_squares: float
    n_runs: int = 1

    @property
    def deviation(self) -> float:
        """The standard deviation of a difference. It is about 0, for neither judgement is the better one."""
        return sqrt(self.sum_squares / self.n_pairs)


def pool_noise(noises: Iterable[Noise]) -> Noise | None:
    """Return all pairs together; None without any."""
    measured = [noise for noise in noises if noise.n_pairs]
    if not measured:
        return None
    return Noise(
        n_pairs=sum(noise.n_pairs for noise in measured),
        n_changed=sum(noise.n_changed for noise in measured),
        sum_squares=sum(noise.sum_squares for noise in measured),
        n_runs=sum(noise.n_runs for noise in measured),
    )


def sum_squares(*, n: int, mean: float | None, sd: float | None) -> float:
    """Return Σd² of n differences from their mean and standard deviation, as the table `noise` has them."""
    return n * (mean or 0.0) ** 2 + max(n - 1, 0) * (sd or 0.0) ** 2


def find_floor(noise: Noise, *, n: int, again: Integers, scale: float) -> float:
    """Return the largest |change| of a mean over `n` samples that noise alone reaches in 95 of 100 comparisons.

    `again` counts, by cluster, the samples among the n that the two runs did not score from the very same replies; the
    others add no noise. `scale` is the widest difference that two scores can have. With s the deviation of a pair:

        floor = q · √(Σ again²) / n + h / 2n        where q = min(t · s, 1.96 · scale · √u)

    - Given their texts, samples are judged independently of each other, so that n noisy samples would add s · √n to the
      sum. Samples of a cluster share texts and now and then replies: they count as if they erred together, the worst
      case; without clusters each sample counts alone, and Σ again² is how many are judged again.
    - t is the 97.5 % point of Student's distribution, not 1.96, because s is an estimate. Most pairs do not differ at
      all, so s rests on the n_changed that do, and they count as its degrees of freedom, less one. (In Satterthwaite's
      count, 1946, Biometrics Bulletin 2(6), pairs that differ at a rate r by steps of one size give
      2 · n_changed / (1 - r); steps of many sizes give fewer, and that count of them missed in up to 15 % of
      simulations, this one in at most 5 %.)
    - u is the upper end of Clopper and Pearson's one-sided 95 % interval for the share of pairs that differ (1934,
      Biometrika 26(4)): never more than that share can differ, and never by more than the scale. Where no pair differs
      it is 1 - 0.05^(1/n_pairs), the rule of three, 3 / n_pairs (Hanley and Lippman-Hand 1983, JAMA 249(13)), so that
      ten equal pairs do not give a judge a floor of 0.
    - h is the usual step of a score that changed: sums of few steps are coarse, and half a step bridges that, as in any
      normal approximation to counts.
    """
    weight = sqrt(float(np.square(again.astype(np.float64)).sum()))
    if not weight:
        return 0.0
    share = 1.0
    if noise.n_changed < noise.n_pairs:
        share = float(betaincinv(noise.n_changed + 1, noise.n_pairs - noise.n_changed, 1 - ALPHA))
    most = -NORMAL.inv_cdf(ALPHA / 2) * scale * sqrt(share)
    freedom = noise.n_changed - 1
    estimated = -float(stdtrit(freedom, ALPHA / 2)) * noise.deviation if freedom > 0 else most
    step = sqrt(noise.sum_squares / noise.n_changed) if noise.n_changed else scale
    return (min(estimated, most) * weight + step / 2) / n


def pick_samples(sample_ids: Sequence[str], *, share: float, seed: str) -> list[str]:
    """Return a random share of the samples in their order, at least MIN_SAMPLES; equal seeds pick the same."""
    n = count_picked(len(sample_ids), share)
    places = random.Random(seed).sample(range(len(sample_ids)), n)
    return [sample_ids[place] for place in sorted(places)]


def pick_steadily(sample_ids: Sequence[str], *, share: float) -> list[str]:
    """Return a random share of the samples in their order, at least MIN_SAMPLES, the same ones every night.

    Each sample's place in the draw is the hash of its id: where samples come or go, the others keep their place, and
    only the few at the end of the share change.
    """
    drawn = sorted(sample_ids, key=lambda sample_id: hashlib.sha256(f"repeats {sample_id}".encode()).digest())
    picked = frozenset(drawn[: count_picked(len(sample_ids), share)])
    return [sample_id for sample_id in sample_ids if sample_id in picked]


def has_noise(judge: str, embeddings: str | None) -> bool:
    """Return True if judge or embeddings may answer differently the second time. Those without a model do not."""
    return not all(map(is_fixed, list_judges(judge))) or embeddings not in (None, "hashing")


def count_picked(n_samples: int, share: float) -> int:
    """Return how many of so many samples are picked."""
    return min(n_samples, max(ceil(share * n_samples), MIN_SAMPLES))


@dataclass(frozen=True, kw_only=True)
class MetricNoise:
    """The judge's noise in the change of one metric.

    Of the samples that both runs scored `n_judged_again` rest on other replies. `measured` is the known noise.
    `floor` is None where a change may be noise of unknown size: then `is_unknown`, or where the runs are not
    measured by one yardstick.
    """

    n_judged_again: int
    measured: Noise | None
    floor: float | None
    is_unknown: bool = False


class PairNoise:
    """The stored noise of the judge for a pair of runs; fetched once, used for each metric."""

    def __init__(self, pair: RunPair) -> None:
        self._pair = pair
        self._judged_again = pair.warehouse.fetch(
            "noise/judged_again", base=pair.base.run_id, candidate=pair.candidate.run_id
        )
        self._ids_by_calls: dict[tuple[str, ...], list[str]] = {}
        self._used: dict[tuple[str, str], None] = {}

    @property
    def run_ids(self) -> list[str]:
        """The noise runs that some metric's floor rests on, the nearest first."""
        used = {run_id for _, run_id in self._used}
        return [run_id for run_id in self._noise_runs[0] if run_id in used] if used else []

    def find_shifts(self) -> list[Shift]:
        """Return the metrics with a floor in which the judge's scores have shifted."""
        run_ids = self.run_ids
        if not run_ids:
            return []
        frame = self._pair.warehouse.fetch("noise/differences", {"run_id": run_ids})
        used = pl.DataFrame(list(self._used), schema={"metric": pl.String, "noise_run_id": pl.String}, orient="row")
        return find_shifts(frame.join(used, on=["metric", "noise_run_id"]), run_ids)

    def list_judged_again(self, steps: Collection[str]) -> list[str]:
        """Return the samples whose score, by a metric that rests on these steps, rests on other replies than before.

        Of a metric whose steps are not known, every step counts.
        """
        calls = tuple(sorted(list_call_steps(steps)))
        if calls not in self._ids_by_calls:
            again = self._judged_again
            if steps:
                again = again.filter(pl.col("step").is_in(calls))
            self._ids_by_calls[calls] = again["sample_id"].unique().to_list()
        return self._ids_by_calls[calls]

    def find(
        self,
        metric: str,
        *,
        steps: Collection[str],
        version: str | None,
        values: Floats,
        again: Flags,
        clusters: Integers,
        changed: Collection[str],
    ) -> MetricNoise:
        """Return the noise in a metric's change over the samples that both runs scored.

        By sample: `values`, both runs' scores; whether it was judged `again`; its cluster; the names of what changed.
        """
        n_judged_again = int(again.sum())
        if any(_OTHER_YARDSTICKS.intersection(name.split("+")) for name in changed):
            return MetricNoise(n_judged_again=n_judged_again, measured=None, floor=None)
        if not n_judged_again:
            return MetricNoise(n_judged_again=0, measured=None, floor=0.0 if len(again) else None)
        runs, by_metric, asked = self._noise_runs
        rows = [
            row
            for row in by_metric.get(metric, [])
            if row["metric_version"] == version
            and is_judged_alike(runs[row["noise_run_id"]], self._pair.candidate, asked, steps)
        ]
        self._used |= dict.fromkeys((metric, row["noise_run_id"]) for row in rows)
        measured = pool_noise(
            Noise(
                n_pairs=row["n_samples"],
                n_changed=row["n_changed"],
                sum_squares=sum_squares(n=row["n_samples"], mean=row["mean_difference"], sd=row["sd_difference"]),
            )
            for row in rows
        )
        if measured is None:
            return MetricNoise(n_judged_again=n_judged_again, measured=None, floor=None, is_unknown=True)
        floor = find_floor(
            measured, n=len(again), again=np.bincount(clusters[again]).astype(np.int64), scale=find_scale(values)
        )
        return MetricNoise(n_judged_again=n_judged_again, measured=measured, floor=floor)

    @cached_property
    def _noise_runs(
        self,
    ) -> tuple[Mapping[str, RunRow], Mapping[str, list[dict[str, Any]]], Mapping[str, Mapping[str, Mapping[str, Any]]]]:
        """The newest noise runs of the candidate's series by their ids, the nearest first; the rows of `noise` by
        metric; and by run how the noise runs and the candidate were asked."""
        warehouse, candidate_id = self._pair.warehouse, self._pair.candidate.run_id
        run_ids = list(warehouse.fetch("noise/noise_runs", run_id=candidate_id)["noise_run_id"])[:POOLED_RUNS]
        runs = {run.run_id: run for run in list_runs(warehouse)} if run_ids else {}
        frame = warehouse.fetch("noise/noise_rows", {"run_id": run_ids})
        rows = {str(key[0]): rows.to_dicts() for key, rows in frame.partition_by("metric", as_dict=True).items()}
        asked = fetch_asked(warehouse, [candidate_id, *run_ids])
        return {run_id: runs[run_id] for run_id in run_ids}, rows, asked


def is_judged_alike(
    one: RunRow, other: RunRow, asked: Mapping[str, Mapping[str, Mapping[str, Any]]], steps: Collection[str]
) -> bool:
    """Return True if two runs had the same judge, model, prompt and settings in these steps; without any, in all of
    `other`.

    `asked` has both runs, as `fetch_asked` returns them.
    """
    theirs, ours = asked[one.run_id], asked[other.run_id]
    for step in list_call_steps(steps) if steps else ours:
        if is_changed_everywhere(one, other, step):
            return False
        before, after = theirs.get(step), ours.get(step)
        if before is None or after is None:
            continue
        # Each counts as far as both runs have one: few runs of some of the samples have a question after earlier turns.
        if any(before[key] and after[key] and before[key] != after[key] for key in ("judges", "judges_of_talks")):
            return False
        models = [set(row["models"] or ()) for row in (before, after)]
        if all(models) and not models[0] & models[1]:
            return False
    return True


def find_scale(values: Floats) -> float:
    """Return how far two scores can be apart: 1 where they are shares, else as far as these are; NaN is unscored.

    Scores that are all one number beyond 0 to 1 do not show their scale: 0.
    """
    known = values[~np.isnan(values)]
    low, high = float(known.min(initial=0.0)), float(known.max(initial=1.0))
    return 1.0 if low >= 0 and high <= 1 else float(np.ptp(known))


ROUNDS: Final = (1, 2, 4)
"""Repeats of each question for which a plan states the number of questions."""
_MAX_ROUNDS = 20
_SIGNIFICANCE: Final = NormalDist().inv_cdf(0.975)
# The share of the questions that more votes can save at best: from the first on they are worth their price, up to the
# second they are useless.
_WORTH_VOTES = 0.1
_USELESS = 0.05

Spending = Literal["nothing", "questions", "votes"]
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Components:
    """The variance components of a metric's scores in one run: a row of the view `noise_components`.

    `answers` is the variance between answers to one question with the ends of its 95 % interval; `judge` the judge's
    part of that, None where it was not measured.
    """

    metric: str
    n_questions: int
    scale: float
    answers: tuple[float, float, float]
    judge: float | None
    judge_share: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The effort it takes to see a drop of a metric's mean between two runs with a power.

    `n_needed` questions, with the ends that follow from the interval of the variance; `n_with_repeats` if each is asked
    so many further times on both nights and all its answers count; `n_without_judge` if the judge never varied, the
    most that votes can do, None where its noise is not known. `rounds` are the fewest repeats of each of the present
    `n_questions` that would do, None where no number does. `next` is what is best spent on.
    """

    metric: str
    drop: float
    power: float
    n_questions: int
    n_needed: int
    n_needed_low: int
    n_needed_high: int
    n_with_repeats: Mapping[int, int]
    n_without_judge: int | None
    rounds: int | None
    judge_share: float | None
    next: Spending

    def describe(self) -> str:
        """Return the plan as a sentence."""
        start = f"to see a drop of {self.drop:g} in {self.metric} with {self.power:.0%} power: "
        needed = f"{self.n_needed:,} questions ({self.n_needed_low:,} to {self.n_needed_high:,}"
        if self.next == "nothing":
            return f"{start}{needed}); there are {self.n_questions:,}"
        repeats = f"{self.n_with_repeats[2]:,} with 2 repeats of each"
        if self.rounds is not None and self.rounds != 2:  # 2 has just been named
            repeats += f", or the present ones with {self.rounds}"
        share = f"the judge is {self.judge_share or 0:.0%} of the variance"
        if self.n_without_judge is None:
            votes = "the effect of more votes is not known until the judge's noise is measured"
        elif self.next == "votes":
            votes = f"with more votes {self.n_without_judge:,} at best: {share}"
        elif self.n_without_judge > (1 - _USELESS) * self.n_needed:
            votes = f"more votes would not help: {share}"
        else:
            votes = f"more votes would hardly help, {self.n_without_judge:,} at best: {share}"
        return f"{start}{needed}; there are {self.n_questions:,}); or {repeats}; {votes}"


def find_smallest_drop(components: Components, *, power: float = POWER) -> float:
    """Return the drop of the mean that the present questions show with this power; never more than the scale."""
    z, n, scale = _SIGNIFICANCE + NormalDist().inv_cdf(power), components.n_questions, components.scale
    # n δ² = z² (2 W + δ (c - δ)), solved for δ.
    linear = z**2 * scale
    root = sqrt(linear**2 + 8 * (n + z**2) * z**2 * components.answers[0])
    return min((linear + root) / (2 * (n + z**2)), scale)


def count_questions(
    components: Components, drop: float, *, answers: float, n_answers: int = 1, power: float = POWER
) -> int:
    """Return how many questions show a drop with this power; `answers` is the variance between a question's answers."""
    z = _SIGNIFICANCE + NormalDist().inv_cdf(power)
    drop = min(drop, components.scale)
    return max(ceil(z**2 * (2 * answers / n_answers + drop * (components.scale - drop)) / drop**2 - 1e-9), 2)


def plan_spending(components: Components, drop: float, *, power: float = POWER) -> Plan:
    """Return what it takes to see a drop, which is more than 0, with this power."""

    count = partial(count_questions, components, drop, power=power)
    value, low, high = components.answers
    n_needed = count(answers=value)
    without_judge = None if components.judge is None else count(answers=value - components.judge)
    rounds = (
        rounds
        for rounds in range(1, _MAX_ROUNDS + 1)
        if count(answers=value, n_answers=1 + rounds) <= components.n_questions
    )
    spending: Spending = "questions"
    if n_needed <= components.n_questions:
        spending = "nothing"
    elif without_judge is not None and without_judge <= (1 - _WORTH_VOTES) * n_needed:
        spending = "votes"
    return Plan(
        metric=components.metric,
        drop=drop,
        power=power,
        n_questions=components.n_questions,
        n_needed=n_needed,
        n_needed_low=count(answers=low),
        n_needed_high=count(answers=high),
        n_with_repeats={rounds: count(answers=value, n_answers=1 + rounds) for rounds in ROUNDS},
        n_without_judge=without_judge,
        rounds=0 if spending == "nothing" else next(rounds, None),
        judge_share=components.judge_share,
        next=spending,
    )


def describe_components(
    rows: Sequence[Row], drops: Mapping[str, float], *, power: float = POWER
) -> list[dict[str, Any]]:
    """Return the rows of the view, each with the smallest drop that shows and the plan for the drop asked for.

    A plan is None for a metric without a given drop.
    """
    described = []
    for row in rows:
        judge, variance = row["judge_variance"], row["variance"]
        components = Components(
            metric=row["metric"],
            n_questions=row["n_questions"],
            scale=row["scale"],
            answers=(row["answer_variance"], row["answer_low"], row["answer_high"]),
            judge=None if judge is None else min(row["judged_apart"] * judge, row["answer_variance"]),
            judge_share=None if judge is None else min(judge / variance, 1.0) if variance else 0.0,
        )
        drop = drops.get(components.metric)
        plan = plan_spending(components, drop, power=power) if drop else None
        smallest_drop = find_smallest_drop(components, power=power)
        document = {**asdict(plan), "text": plan.describe()} if plan else None
        described.append({**row, "power": power, "smallest_drop": smallest_drop, "plan": document})
    return described
