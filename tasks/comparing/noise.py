"""How far a judge is from itself, and from where on a change of a mean is more than that.

A noise run judges some samples of a run again, every request asked anew. Each sample then has two scores d apart that
only the judge's own dice can have set apart, and Σd² over the pairs says how large those dice are. What two runs differ
by holds the same dice, once for each common sample that was not judged by the very same replies: that makes the floor,
the largest change of the mean that they alone would reach in 95 of 100 comparisons. `flows/run/noise.py` makes the
runs, `warehouse/rows/noise.py` reads what came of them, `compare_runs` holds changes against the floor.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from evalhouse.tasks.comparing.bootstrap import ALPHA, Integers

LEAST_SAMPLES: Final = 10
"""Samples that a noise run judges again at least, where there are so many."""
POOLED_RUNS: Final = 10
"""The newest noise runs of a series that a floor rests on; older ones tell less and less of the judge as it is."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One metric over pairs of judgements of the same sample: `n_changed` of `n_pairs` gave another score.

    `sum_squares` is Σd² of the scores' differences, `n_runs` the noise runs that the pairs are from.
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
    """All pairs together; None when there is none."""
    found = [noise for noise in noises if noise.n_pairs]
    if not found:
        return None
    return Noise(
        n_pairs=sum(noise.n_pairs for noise in found),
        n_changed=sum(noise.n_changed for noise in found),
        sum_squares=sum(noise.sum_squares for noise in found),
        n_runs=sum(noise.n_runs for noise in found),
    )


def sum_squares(*, n: int, mean: float | None, sd: float | None) -> float:
    """Σd² of n differences from their mean and standard deviation, as the table `noise` has them."""
    return n * (mean or 0.0) ** 2 + max(n - 1, 0) * (sd or 0.0) ** 2


def find_floor(noise: Noise, *, n: int, anew: Integers, scale: float) -> float:
    """The largest |change| of a mean over `n` samples that the judge's noise alone reaches in 95 of 100 comparisons.

    `anew` has, by cluster, the samples among the n that the two runs did not score from the very same replies; the
    others add no noise. `scale` is the widest difference that two scores can have. With s the deviation of a pair:

        floor = q · √(Σ anew²) / n + h / 2n        where q = min(t · s, 1.96 · scale · √u)

    - Given their texts, samples are judged independently of each other, so that n noisy samples would add s · √n to the
      sum. Samples of a cluster share texts and now and then replies: they count as if they erred together, which is the
      most that can be; without clusters each sample is its own, and Σ anew² is how many are judged anew.
    - t is the 97.5 % point of Student's distribution, not 1.96, because s is an estimate. Most pairs do not differ at
      all, so it is the n_changed that do which s rests on, and they count as its degrees of freedom, less one. (In
      Satterthwaite's count, 1946, Biometrics Bulletin 2(6), pairs that differ at a rate r by steps of one size give
      2 · n_changed / (1 - r); steps of many sizes give fewer, and that count of them missed in up to 15 % of
      simulations, this one in at most 5 %.)
    - u is the upper end of Clopper and Pearson's one-sided 95 % interval for the share of pairs that differ (1934,
      Biometrika 26(4)): never more than that share can differ, by no more than the scale. Where no pair differs it is
      1 - 0.05^(1/n_pairs), the rule of three, 3 / n_pairs (Hanley and Lippman-Hand 1983, JAMA 249(13)), and no
      judge has a floor of 0 because it was asked ten times.
    - h is the usual step of a score that changed: sums of few steps are coarse, and half a step bridges that, as in any
      normal approximation to counts.
    """
    weight = sqrt(float(np.square(anew.astype(np.float64)).sum()))
    if not weight:
        return 0.0
    most = -float(ndtri(ALPHA / 2)) * scale * sqrt(_bound_share(noise))
    freedom = noise.n_changed - 1
    estimated = -float(stdtrit(freedom, ALPHA / 2)) * noise.deviation if freedom > 0 else most
    step = sqrt(noise.sum_squares / noise.n_changed) if noise.n_changed else scale
    return (min(estimated, most) * weight + step / 2) / n


def _bound_share(noise: Noise) -> float:
    if noise.n_changed >= noise.n_pairs:
        return 1.0
    return float(betaincinv(noise.n_changed + 1, noise.n_pairs - noise.n_changed, 1 - ALPHA))


def pick_samples(sample_ids: Sequence[str], *, share: float, seed: str) -> list[str]:
    """A random share of the samples in their order, at least LEAST_SAMPLES of them; equal seeds pick the same."""
    n = count_picked(len(sample_ids), share)
    places = random.Random(seed).sample(range(len(sample_ids)), n)
    return [sample_ids[place] for place in sorted(places)]


def has_noise(judge: str, embeddings: str | None) -> bool:
    """Whether the judge or the embeddings may say something else the second time. Those without a model do not."""
    return judge != "lexical" or embeddings not in (None, "hashing")


def count_picked(n_samples: int, share: float) -> int:
    """How many of so many samples `pick_samples` picks."""
    return min(n_samples, max(ceil(share * n_samples), LEAST_SAMPLES))
