"""Votes: the same question asked several times, and what more than half of the answers say.

Counted are marks: a label is one mark, and each context that is said to support a statement is one. A mark holds when
more than half of all votes set it, and does not when more than half leave it out; a vote that failed could have done
either, so nothing is decided over its head. `verdicts` asks and counts; the steps keep each vote beside their verdict.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalhouse.tasks.asking.replies import Verdict

_NO_CONTEXT = "none"


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One vote on one item, the call it came from, and whether the majority said just the same.

    `number` is that of the question it answers: from 1, or 0 where nothing was put to the vote.
    """

    number: int
    verdict: Verdict
    call_id: str
    agrees: bool = True


@dataclass(frozen=True, kw_only=True)
class Elected:
    """What the majority says, in the words and with the call of the vote that is nearest to it."""

    verdict: Verdict
    call_id: str
    votes: tuple[Vote, ...]


def elect(cast: Sequence[Vote], *, asked: int) -> Elected | None:
    """The majority of `asked` votes, of which these came; None when they leave it open.

    Supporting contexts are counted one by one, so that the majority may be a set that no single vote named.
    """
    counts = Counter(mark for vote in cast for mark in _list_marks(vote.verdict))
    half = asked / 2
    settled = all(count > half or len(cast) - count > half for count in counts.values())
    elected = frozenset(mark for mark, count in counts.items() if count > half)
    is_label = any(vote.verdict.label is not None for vote in cast)
    if len(cast) <= half or not settled or (is_label and not elected):
        return None
    votes = tuple(replace(vote, agrees=_list_marks(vote.verdict) == elected) for vote in cast)
    nearest = min(votes, key=lambda vote: _measure_distance(_list_marks(vote.verdict), elected))
    verdict = nearest.verdict
    if not nearest.agrees:
        reason = f"by a majority for each context; the nearest vote: {verdict.reason}"
        verdict = Verdict(reason=reason, contexts=tuple(sorted(elected, key=_read_rank)))
    return Elected(verdict=verdict, call_id=nearest.call_id, votes=votes)


def _list_marks(verdict: Verdict) -> frozenset[str]:
    return frozenset(verdict.contexts if verdict.label is None else (verdict.label,))


def _measure_distance(marks: frozenset[str], elected: frozenset[str]) -> tuple[bool, int]:
    """How far a vote is from the majority: whether there is support at all comes first, then by how many marks."""
    return bool(marks) != bool(elected), len(marks ^ elected)


def _read_rank(context_id: str) -> int:
    return int(context_id[1:])


def write_verdict(verdict: Verdict) -> str:
    if verdict.label is not None:
        return verdict.label
    return ",".join(map(str, sorted({_read_rank(item) for item in verdict.contexts}))) or _NO_CONTEXT
