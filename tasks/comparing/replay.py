"""Which of the two did it, retrieval or generation: what becomes of a score when the bot is given other contexts.

A score moved from `before` to `after` between two runs. The bot of the second one is asked again with the contexts of
the first run (`old`) and with its own (`new`), some times each. What it says with its own contexts shows whether the
move is there at all when it is asked again; what it says with the old ones shows where the score is when retrieval is
put back. The share of retrieval is the part of the way that this brings it back:

    share = (after - mean of the scores with the old contexts) / (after - before)

Of 2/3 and more retrieval did it, of 1/3 and less generation, in between both. Scores that lie on either side of the
middle from one asking to the next say that the bot answers differently each time: then neither did it.

Where retrieval did it, contexts that differ are put back or taken away one at a time, and the document is the one
without whose change the score is on the other side of the middle. Here is arithmetic over scores and contexts alone;
`flows/replay.py` asks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from evalhouse.tasks.comparing.intervals import find_share_interval
from evalhouse.warehouse.messages import shorten

Verdict = Literal["retrieval", "generation", "both", "noise", "judge", "unknown"]
VERDICTS: Final[tuple[Verdict, ...]] = ("retrieval", "generation", "both", "noise", "judge", "unknown")
Kind = Literal["dropped", "added", "changed"]
OLD, NEW = "old", "new"
MARK: Final = "~"
"""Stands between a sample's id, the contexts it was asked with, and which time that was."""
_MOST, _LEAST = 2 / 3, 1 / 3
_NAME_LENGTH: Final = 60


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The contexts of a sample in one run; `ids` has "" for one without an id."""

    texts: tuple[str, ...]
    ids: tuple[str, ...]

    def leave_out(self, place: int) -> "Contexts":
        """Without the one at a place, from 0."""
        return Contexts(texts=_drop(self.texts, place), ids=_drop(self.ids, place))

    def put_in_place(self, place: int, text: str) -> "Contexts":
        """With another text at a place, from 0."""
        return Contexts(texts=(*self.texts[:place], text, *self.texts[place + 1 :]), ids=self.ids)


@dataclass(frozen=True, kw_only=True)
class DocumentChange:
    """A context that one run had and the other had not, or had with another text under the same id.

    `contexts` are those in which it alone is undone; `is_of_old` says that they are the old ones without it, so that it
    did it where the score falls to what it is now, else they are the new ones, and it did where the score comes back.
    """

    kind: Kind
    name: str
    rank: int
    contexts: Contexts
    is_of_old: bool

    @property
    def arm(self) -> str:
        """Its name among what a sample was asked with, the same for the same two runs."""
        return f"{self.kind}{self.rank}"

    def decides(self, move: "Move", value: float) -> bool:
        """Whether the score with it undone lies on the other side of the middle."""
        return move.is_near_after(value) if self.is_of_old else not move.is_near_after(value)


@dataclass(frozen=True, kw_only=True)
class Move:
    """A sample whose score in a metric is another in the second run."""

    sample_id: str
    metric: str
    before: float
    after: float

    def is_near_after(self, value: float) -> bool:
        """Whether a score lies nearer to what it is now than to what it was."""
        return abs(value - self.after) < abs(value - self.before)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What did it. Scores are means over the times asked; `share` is that of retrieval, as above."""

    move: Move
    verdict: Verdict
    with_old: float | None = None
    with_new: float | None = None
    share: float | None = None
    documents: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class VerdictShare:
    """How many of a metric's moves have a verdict, with the 95 % interval of their share."""

    metric: str
    verdict: Verdict
    n: int
    n_moves: int
    share: float
    ci_low: float
    ci_high: float


def list_document_changes(old: Contexts, new: Contexts) -> list[DocumentChange]:
    """What differs, one document at a time, by rank. Equal texts are one document; then equal ids are, where no other
    context that differs has the same id."""
    left_old, left_new = _leave_out_common(old, new), _leave_out_common(new, old)
    same = _find_same_ids(old, left_old, new, left_new)
    changes = [
        DocumentChange(
            kind="changed", name=new.ids[there], rank=there + 1, is_of_old=False,
            contexts=new.put_in_place(there, old.texts[here]),
        )
        for here, there in same.items()
    ]  # fmt: skip
    for kind, side, places in (("dropped", old, left_old), ("added", new, left_new)):
        taken = same.keys() if kind == "dropped" else set(same.values())
        changes += [
            DocumentChange(
                kind="dropped" if kind == "dropped" else "added", name=_name(side, place), rank=place + 1,
                is_of_old=side is old, contexts=side.leave_out(place),
            )
            for place in places if place not in taken
        ]  # fmt: skip
    return sorted(changes, key=lambda change: change.rank)


def judge_move(
    move: Move, *, old: Sequence[float | None] | None, new: Sequence[float | None], same_answer: bool
) -> Finding:
    """What did it, by the scores with the old contexts (None where both runs had the same) and with the new ones.

    A score that is missing leaves the verdict open.
    """
    if old is None and same_answer:
        return Finding(move=move, verdict="judge", note="answer and contexts are the same in both runs")
    with_new = _keep_all(new)
    with_old = with_new if old is None else _keep_all(old)
    if with_new is None or with_old is None:
        return Finding(move=move, verdict="unknown", note="not every answer has a score")
    share = (move.after - _mean(with_old)) / (move.after - move.before)
    verdict, note = _decide(move, with_old=None if old is None else with_old, with_new=with_new, share=share)
    return Finding(
        move=move, verdict=verdict, with_old=None if old is None else _mean(with_old), with_new=_mean(with_new),
        share=None if old is None else share, note=note,
    )  # fmt: skip


def _decide(
    move: Move, *, with_old: Sequence[float] | None, with_new: Sequence[float], share: float
) -> tuple[Verdict, str | None]:
    if not all(map(move.is_near_after, with_new)):
        n_back = sum(not move.is_near_after(value) for value in with_new)
        return "noise", f"asked again with its own contexts, {n_back} of {len(with_new)} answers score as before"
    if with_old is None:
        return "generation", "both runs had the same contexts"
    sides = {move.is_near_after(value) for value in with_old}
    if len(sides) == 2 and max(with_old) - min(with_old) > abs(move.after - move.before) / 2:
        return "noise", "with the old contexts it answers differently each time"
    if share >= _MOST:
        return "retrieval", None
    return ("generation" if share <= _LEAST else "both"), None


def name_documents(
    move: Move, changes: Sequence[DocumentChange], values: Mapping[str, float | None], *, most: int
) -> tuple[tuple[str, ...], str | None]:
    """The documents that made the difference, by the scores with each undone, by arm; else why none is named."""
    if not changes:
        return (), "the same contexts in another order"
    tried = {change.arm: values.get(change.arm) for change in changes[:most]}
    names = [
        f"{change.name} ({change.kind})"
        for change in changes[:most]
        if (value := tried[change.arm]) is not None and change.decides(move, value)
    ]
    if names:
        return tuple(names), None
    if None in tried.values():
        return (), "not every answer has a score"
    left = f" of the {most} tried, out of {len(changes)}" if len(changes) > most else ""
    return (), f"no single document{left}"


def count_verdicts(findings: Iterable[Finding]) -> list[VerdictShare]:
    """By metric the verdicts that were given, in their order, with Wilson's interval of each share."""
    by_metric: dict[str, Counter[Verdict]] = {}
    for finding in findings:
        by_metric.setdefault(finding.move.metric, Counter())[finding.verdict] += 1
    return [
        _share(metric, verdict, counts[verdict], counts.total())
        for metric, counts in by_metric.items()
        for verdict in VERDICTS
        if counts[verdict]
    ]


def _share(metric: str, verdict: Verdict, n: int, n_moves: int) -> VerdictShare:
    low, high = find_share_interval(np.array([n]), np.array([n_moves]), np.array([n_moves]))
    return VerdictShare(
        metric=metric, verdict=verdict, n=n, n_moves=n_moves, share=n / n_moves, ci_low=float(low[0]),
        ci_high=float(high[0]),
    )  # fmt: skip


def _leave_out_common(side: Contexts, other: Contexts) -> list[int]:
    """The places of texts that the other side does not have, or not so many times."""
    there = Counter(other.texts)
    places = []
    for place, text in enumerate(side.texts):
        if there[text]:
            there[text] -= 1
        else:
            places.append(place)
    return places


def _find_same_ids(old: Contexts, left_old: Sequence[int], new: Contexts, left_new: Sequence[int]) -> dict[int, int]:
    """By place in the old contexts the place in the new ones, of documents whose text is another."""
    in_old = Counter(old.ids[place] for place in left_old)
    in_new = Counter(new.ids[place] for place in left_new)
    places = {new.ids[place]: place for place in left_new}
    return {place: places[name] for place in left_old if (name := old.ids[place]) and in_old[name] == in_new[name] == 1}


def _name(side: Contexts, place: int) -> str:
    return side.ids[place] or repr(shorten(side.texts[place], _NAME_LENGTH))


def _drop(values: tuple[str, ...], place: int) -> tuple[str, ...]:
    return (*values[:place], *values[place + 1 :])


def _keep_all(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
