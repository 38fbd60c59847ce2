"""Whether an answer metric moved because of retrieval: other contexts, and a retrieval metric that moved the same way.

A metric of the answer (factual_f1) does not read the contexts, so that its parts name the answer and no more. In a RAG
bot the answer is often another because the contexts are. Where most of such a metric's move comes from samples whose
contexts are others too, and a metric of retrieval alone is better or worse in the same way, that is told as one thing.
Metrics of retrieval alone may also have moved while the answers stood: that is said of retrieval by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evalhouse.tasks.comparing.bootstrap import Floats
from evalhouse.tasks.comparing.parts import Cause, Flags

_LEAST_SHARE: Final = 0.5
"""The share of a mean's move that samples with other contexts must account for."""
_CLEAR: Final = ("worse", "better")
_MOST_NAMED: Final = 4


@dataclass(frozen=True, kw_only=True)
class MetricMoves:
    """A metric by sample: `rests_on` is what of a sample can move it, `moves` is candidate - base, NaN where one is
    unscored, and `verdict` that of its comparison.
    """

    metric: str
    rests_on: frozenset[Cause]
    moves: Floats
    verdict: str


@dataclass(frozen=True, kw_only=True)
class RetrievalFinding:
    """`metric` moved by `value` on the `n_contexts` of its `n_answers` samples with another answer that had other
    contexts as well, of `difference` over all; on those same samples `retrieval_metric` moved by `retrieval_value`.
    """

    metric: str
    verdict: str
    n_answers: int
    n_contexts: int
    value: float
    difference: float
    retrieval_metric: str
    retrieval_value: float

    def describe(self) -> str:
        """The finding in a sentence."""
        return (
            f"{self.metric} is {self.verdict}, and it looks like retrieval: of {self.n_answers} samples with another "
            f"answer {self.n_contexts} also had other contexts, which add {self.value:+.3f} to the "
            f"{self.difference:+.3f}; {self.retrieval_metric} moved by {self.retrieval_value:+.3f} on these"
        )


@dataclass(frozen=True, kw_only=True)
class RetrievalMove:
    """A metric of retrieval alone that is better or worse by `difference`, for the most part in samples whose contexts
    are others: `n_contexts` of the `n` that both runs scored."""

    metric: str
    verdict: str
    n: int
    n_contexts: int
    difference: float


def find_retrieval(metrics: Sequence[MetricMoves], *, answers: Flags, contexts: Flags) -> Iterator[RetrievalFinding]:
    """What looks like retrieval; the flags say which samples have another answer and which other contexts."""
    of_retrieval = _pick_retrieval(metrics)
    for metric in metrics:
        if metric.verdict in _CLEAR and {"answer", "contexts"} & metric.rests_on == {"answer"}:
            yield from _look_at(metric, of_retrieval, answers=answers, contexts=contexts)


def list_retrieval_moves(metrics: Sequence[MetricMoves], *, contexts: Flags) -> Iterator[RetrievalMove]:
    """The metrics of retrieval alone that are better or worse because of the contexts, as the flags say them."""
    for metric in _pick_retrieval(metrics):
        scored = ~np.isnan(metric.moves)
        difference = float(metric.moves[scored].sum())
        if metric.verdict in _CLEAR and float(metric.moves[scored & contexts].sum()) / difference >= _LEAST_SHARE:
            yield RetrievalMove(
                metric=metric.metric,
                verdict=metric.verdict,
                n=int(scored.sum()),
                n_contexts=int((scored & contexts).sum()),
                difference=difference / int(scored.sum()),
            )


def describe_retrieval_moves(moves: Sequence[RetrievalMove]) -> tuple[str, str] | None:
    """What became of the retrieval in half a sentence, and in which metrics; None where nothing did."""
    if not moves:
        return None
    named = {way: [move for move in moves if move.verdict == way] for way in _CLEAR}
    ways = [way for way in _CLEAR if named[way]]
    said = ways[0] if len(ways) == 1 else "worse in some ways and better in others"
    most = max(moves, key=lambda move: move.n_contexts)
    by_way = "; ".join(f"{way} in {_name_moves(named[way])}" for way in ways)
    return (
        f"The retrieval is {said}",
        f"Retrieval is {by_way}; {most.n_contexts:,} of {most.n:,} samples have other contexts",
    )


def _name_moves(moves: Sequence[RetrievalMove]) -> str:
    """The metrics that moved furthest, and how many more there are."""
    ordered = sorted(moves, key=lambda move: -abs(move.difference))
    named = ", ".join(f"{move.metric} ({move.difference:+.3f})" for move in ordered[:_MOST_NAMED])
    return named + (f" and {len(moves) - _MOST_NAMED} more" if len(moves) > _MOST_NAMED else "")


def _pick_retrieval(metrics: Sequence[MetricMoves]) -> list[MetricMoves]:
    return [metric for metric in metrics if "contexts" in metric.rests_on and "answer" not in metric.rests_on]


def _look_at(
    metric: MetricMoves, of_retrieval: Sequence[MetricMoves], *, answers: Flags, contexts: Flags
) -> Iterator[RetrievalFinding]:
    scored = ~np.isnan(metric.moves)
    both = scored & answers & contexts
    difference, value = (float(metric.moves[flags].sum() / scored.sum()) for flags in (scored, both))
    agreeing = [
        (abs(moved), other.metric, moved)
        for other in of_retrieval
        if other.verdict == metric.verdict and (moved := _mean_move(other.moves, both))
    ]
    if agreeing and value / difference >= _LEAST_SHARE:
        _, name, moved = max(agreeing)
        yield RetrievalFinding(
            metric=metric.metric,
            verdict=metric.verdict,
            n_answers=int((scored & answers).sum()),
            n_contexts=int(both.sum()),
            value=value,
            difference=difference,
            retrieval_metric=name,
            retrieval_value=moved,
        )


def _mean_move(moves: Floats, flags: Flags) -> float:
    there = moves[flags & ~np.isnan(moves)]
    return float(there.mean()) if len(there) else 0.0
