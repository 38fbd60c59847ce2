"""The causes of bad answers in two runs: which of them grew, and whether retrieval or generation is behind that.

A cause counts over the samples that were judged in both runs. It grew or shrank beyond chance by the same sign-flip
test that scores have, with p adjusted over all causes. A stage of the bot is worse or better by these rules:

- Retrieval: a metric that rests on the contexts alone moved because of other contexts, or a cause that only other
  contexts can end, such as `retrieval_missed`, grew or shrank among samples with other contexts.
- Generation: a cause or most clear metrics of the answer moved, mostly in samples with another answer whose retrieval
  did not move the same way. A bot that answers worse because it finds less is not a case of this.
- Answer: the same, where the contexts changed too and nothing measures them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.changes import Cause, Flags, MetricMoves, PairedSamples
from evalhouse.tasks.comparing.intervals import Floats, Integers
from evalhouse.tasks.comparing.paired import Verdict, compare_paired

Stage = Literal["retrieval", "generation", "answer"]
Way = Literal["worse", "better"]
WAYS: Final[tuple[Way, ...]] = ("worse", "better")
FINE: Final = ("fine", "refused_rightly")
"""Causes of samples in which nothing is wrong."""
OF_RETRIEVAL: Final = (
    "retrieval_missed", "not_in_contexts", "knowledge_base_lacks", "ranked_too_low", "ground_truth_outdated",
)  # fmt: skip
"""Causes that only other contexts can end."""
_OF_MEASURING: Final = ("judge_suspect", "ground_truth_doubtful")
_MOST: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class CauseMove:
    """One cause of bad answers: the samples with it in either run, and if that is worse or better beyond chance."""

    cause: str
    n_base: int
    n_candidate: int
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class CauseChanges:
    """Causes of bad answers over the `n` samples judged in both runs.

    `n_base` and `n_candidate` of these have a problem. `moves` has the causes that either run has, `stages` the stages
    of the bot that are clearly worse or better.
    """

    n: int = 0
    n_base: int = 0
    n_candidate: int = 0
    moves: tuple[CauseMove, ...] = ()
    stages: Mapping[Stage, Way] = field(default_factory=dict)

    def list_moved(self, way: Way) -> list[CauseMove]:
        """Return the causes that grew (`worse`) or shrank, the clear ones first, then by size."""
        sign = 1 if way == "worse" else -1
        moved = [move for move in self.moves if sign * (move.n_candidate - move.n_base) > 0]
        return sorted(moved, key=lambda move: (move.verdict != way, sign * (move.n_base - move.n_candidate)))


def find_cause_changes(
    causes: pl.DataFrame,
    samples: PairedSamples,
    metrics: Sequence[MetricMoves],
    *,
    changed: Mapping[Cause, Flags],
    clusters: Integers,
    seed: int,
    resamples: int,
) -> CauseChanges:
    """Compare the causes of two runs; `causes` are the rows of `run_pairs/causes.sql`.

    `metrics` are in the order of the runs, `changed` and `clusters` by sample. Equal arguments give equal results.
    """
    names = sorted(set(causes["base"]) | set(causes["candidate"]))
    places = [samples.places[sample_id] for sample_id in causes["sample_id"]]
    sides = {}
    for side in ("base", "candidate"):
        sides[side] = np.full(len(samples.ids), "", dtype=object)
        sides[side][places] = causes[side].to_list()
    faults = [name for name in names if name not in FINE]

    def differ(of: Iterable[str], where: Flags) -> Floats:
        """Return by sample 1 where it came to have one of these causes, -1 where it lost them, NaN where not judged."""
        moves = np.isin(sides["candidate"], list(of)).astype(float) - np.isin(sides["base"], list(of))
        moves[~where] = 0.0
        moves[sides["base"] == ""] = np.nan
        return moves

    everywhere = np.ones(len(samples.ids), dtype=bool)
    missed = differ(OF_RETRIEVAL, changed["contexts"])
    columns = [missed, *(differ([name], everywhere) for name in faults)]
    tested = compare_paired(
        np.column_stack(columns), clusters, low_is_good=[True] * len(columns), seed=seed, resamples=resamples
    )
    verdicts = dict(zip(("", *faults), (paired.verdict for paired in tested), strict=True))
    of_contexts = [metric for metric in metrics if {"answer", "contexts"} & metric.rests_on == {"contexts"}]
    is_measured = bool(faults) or any((~np.isnan(metric.moves)).any() for metric in of_contexts)
    # By sample how far its contexts got better: by the metrics that rest on them alone, and by its causes.
    gains = np.sum([np.nan_to_num(metric.gains) for metric in of_contexts], axis=0) - np.nan_to_num(missed)
    is_wrong_twice = np.isin(sides["base"], faults) & np.isin(sides["candidate"], faults)
    by_contexts = [metric for metric in of_contexts if _find_share(metric.gains, changed["contexts"]) >= _MOST]
    verdicts_of_retrieval = {verdicts[""], *(metric.verdict for metric in by_contexts)}
    stages: dict[Stage, Way] = {}
    for way in WAYS:
        sign = -1.0 if way == "worse" else 1.0
        if way in verdicts_of_retrieval and "retrieval" not in stages:
            stages["retrieval"] = way
        by_retrieval = changed["contexts"] & (sign * gains > 0) if way in verdicts_of_retrieval else ~everywhere
        of_bot = changed["answer"] & ~by_retrieval
        moved = [metric.gains for metric in metrics if metric.verdict == way and "answer" in metric.rests_on]
        n_of_bot = sum(_find_share(gains_of_one, of_bot) >= _MOST for gains_of_one in moved)
        # With other contexts only a sample without a problem on one side is the bot's: else one cause covers another.
        by_bot = {True: of_bot & ~changed["contexts"], False: of_bot & (~changed["contexts"] | ~is_wrong_twice)}
        has_grown = any(
            _find_share(column, by_bot[name in OF_RETRIEVAL]) >= _MOST
            for name, column in zip(faults, columns[1:], strict=True)
            if verdicts[name] == way and name not in _OF_MEASURING
        )
        if 0 < n_of_bot >= _MOST * len(moved) or has_grown:
            is_known = is_measured or all(_find_share(one, changed["contexts"]) < _MOST for one in moved)
            stages.setdefault("generation" if is_known else "answer", way)
    has_fault = {side: int(np.isin(causes_of, faults).sum()) for side, causes_of in sides.items()}
    return CauseChanges(
        n=len(places),
        n_base=has_fault["base"],
        n_candidate=has_fault["candidate"],
        moves=tuple(
            CauseMove(
                cause=name,
                n_base=int((sides["base"] == name).sum()),
                n_candidate=int((sides["candidate"] == name).sum()),
                verdict=verdicts[name],
            )
            for name in faults
        ),
        stages=stages,
    )


def _find_share(gains: Floats, where: Flags) -> float:
    """Return the share of a move that these samples account for; 0 where all of it cancels out."""
    whole = float(np.nansum(gains))
    return float(np.nansum(gains[where])) / whole if whole else 0.0
