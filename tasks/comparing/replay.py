"""Attribution of a score's move to retrieval or generation, by replaying the bot with other contexts.

A score moved from `before` to `after` between two runs. The bot of the second one is asked again with the contexts of
the first run (`old`) and with its present ones (`new`), several times each. The answers with the new contexts show
whether the move repeats at all, the answers with the old ones the score with the former retrieval. The share of
retrieval is the part of the way that the old contexts bring it back:

    share = (after - mean of the scores with the old contexts) / (after - before)

From 2/3 on retrieval did it, up to 1/3 generation, in between both. Scores that lie on either side of the middle from
one asking to the next show that the bot answers differently each time: then neither did it.

Where retrieval did it, contexts that differ are put back or taken away one at a time, and the document is the one
without whose change the score is on the other side of the middle. This module computes with scores and contexts alone;
`flows/replay.py` asks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from evalhouse.tasks.comparing.intervals import find_share_interval
from evalhouse.warehouse.messages import shorten

Verdict = Literal["retrieval", "generation", "both", "noise", "judge", "unknown"]
VERDICTS: Final[tuple[Verdict, ...]] = ("retrieval", "generation", "both", "noise", "judge", "unknown")
Kind = Literal["dropped", "added", "changed"]
OLD, NEW = "old", "new"
MARK: Final = "~"
"""Separates a sample's id, the contexts it was asked with, and the number of the asking."""
_NAME_LENGTH: Final = 60


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The contexts of a sample in one run; `ids` has "" for one without an id."""

    texts: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DocumentChange:
    """A context that one run had and the other had not, or had with another text under the same id.

    `contexts` has this change alone undone. With `is_of_old` they are the old ones without the document, so that it
    decided where the score falls to the present one; else they are the new ones, and it decided where the score
    returns.
    """

    kind: Kind
    name: str
    rank: int
    contexts: Contexts
    is_of_old: bool

    @property
    def arm(self) -> str:
        """The name of these contexts among all that a sample is asked with, the same for the same two runs."""
        return f"{self.kind}{self.rank}"


@dataclass(frozen=True, kw_only=True)
class Move:
    """A sample whose score in a metric differs in the second run."""

    sample_id: str
    metric: str
    before: float
    after: float

    def is_near_after(self, value: float) -> bool:
        """Return True if a score lies nearer to the present one than to the former one."""
        return abs(value - self.after) < abs(value - self.before)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The cause of a move. Scores are means over the times asked; `share` is that of retrieval, as above."""

    move: Move
    verdict: Verdict
    with_old: float | None = None
    with_new: float | None = None
    share: float | None = None
    documents: tuple[str, ...] = ()
    note: str | None = None


def list_document_changes(old: Contexts, new: Contexts) -> list[DocumentChange]:
    """Return the differences, one document at a time, by rank.

    Equal texts are one document; then equal ids are, where no other differing context has the same id.
    """
    left_old, left_new = _leave_out_common(old, new), _leave_out_common(new, old)
    n_old = Counter(old.ids[place] for place in left_old)
    n_new = Counter(new.ids[place] for place in left_new)
    new_places = {new.ids[place]: place for place in left_new}
    changes = []
    same_old, same_new = set(), set()
    for place in left_old:
        name = old.ids[place]
        if name and n_old[name] == n_new[name] == 1:
            there = new_places[name]
            same_old.add(place)
            same_new.add(there)
            texts = (*new.texts[:there], old.texts[place], *new.texts[there + 1 :])
            contexts = Contexts(texts=texts, ids=new.ids)
            changes.append(
                DocumentChange(kind="changed", name=name, rank=there + 1, contexts=contexts, is_of_old=False)
            )
    sides: tuple[tuple[Kind, Contexts, list[int]], ...] = (
        ("dropped", old, [place for place in left_old if place not in same_old]),
        ("added", new, [place for place in left_new if place not in same_new]),
    )
    for kind, side, places in sides:
        for place in places:
            contexts = Contexts(
                texts=(*side.texts[:place], *side.texts[place + 1 :]), ids=(*side.ids[:place], *side.ids[place + 1 :])
            )
            name = side.ids[place] or repr(shorten(side.texts[place], _NAME_LENGTH))
            changes.append(
                DocumentChange(kind=kind, name=name, rank=place + 1, contexts=contexts, is_of_old=kind == "dropped")
            )
    return sorted(changes, key=lambda change: change.rank)


def judge_move(
    move: Move, *, old: Sequence[float | None] | None, new: Sequence[float | None], same_answer: bool
) -> Finding:
    """Return the cause, by the scores with the old contexts (None where both runs had the same) and with the new ones.

    A score that is missing leaves the verdict open.
    """
    if old is None and same_answer:
        return Finding(move=move, verdict="judge", note="answer and contexts are the same in both runs")
    with_new = [value for value in new if value is not None]
    with_old = with_new if old is None else [value for value in old if value is not None]
    if not with_new or not with_old or len(with_new) < len(new) or (old is not None and len(with_old) < len(old)):
        return Finding(move=move, verdict="unknown", note="not every answer has a score")
    share = (move.after - sum(with_old) / len(with_old)) / (move.after - move.before)
    n_back = sum(not move.is_near_after(value) for value in with_new)
    sides = {move.is_near_after(value) for value in with_old}
    verdict: Verdict = "both"
    note = None
    if n_back:
        verdict = "noise"
        note = f"asked again with its own contexts, {n_back} of {len(with_new)} answers score as before"
    elif old is None:
        verdict, note = "generation", "both runs had the same contexts"
    elif len(sides) == 2 and max(with_old) - min(with_old) > abs(move.after - move.before) / 2:
        verdict, note = "noise", "with the old contexts it answers differently each time"
    elif share >= 2 / 3:
        verdict = "retrieval"
    elif share <= 1 / 3:
        verdict = "generation"
    return Finding(
        move=move,
        verdict=verdict,
        with_old=None if old is None else sum(with_old) / len(with_old),
        with_new=sum(with_new) / len(with_new),
        share=None if old is None else share,
        note=note,
    )


def name_documents(
    move: Move, changes: Sequence[DocumentChange], values: Mapping[str, float | None], *, max_tried: int
) -> tuple[tuple[str, ...], str | None]:
    """Return the documents that made the difference, by the scores with each undone; else why none is named.

    `values` has the scores by the changes' arms.
    """
    if not changes:
        return (), "the same contexts in another order"
    tried = [(change, values.get(change.arm)) for change in changes[:max_tried]]
    names = []
    for change, value in tried:
        # A change decided if the score with it undone lies on the other side of the middle.
        if value is not None and move.is_near_after(value) == change.is_of_old:
            names.append(f"{change.name} ({change.kind})")
    if names:
        return tuple(names), None
    if any(value is None for _, value in tried):
        return (), "not every answer has a score"
    left = f" of the {max_tried} tried, out of {len(changes)}" if len(changes) > max_tried else ""
    return (), f"no single document{left}"


def count_verdicts(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Count by metric the verdicts that were given, in their order: `n` of `n_moves`, with Wilson's interval of each
    share."""
    by_metric: dict[str, Counter[Verdict]] = {}
    for finding in findings:
        by_metric.setdefault(finding.move.metric, Counter())[finding.verdict] += 1
    shares = []
    for metric, counts in by_metric.items():
        n_moves = counts.total()
        for verdict in VERDICTS:
            if n := counts[verdict]:
                low, high = find_share_interval(np.array([n]), np.array([n_moves]), np.array([n_moves]))
                shares.append(
                    {"metric": metric, "verdict": verdict, "n": n, "n_moves": n_moves, "share": n / n_moves,
                     "ci_low": float(low[0]), "ci_high": float(high[0])}
                )  # fmt: skip
    return shares


def _leave_out_common(side: Contexts, other: Contexts) -> list[int]:
    """Return the places of texts that the other side does not have, or not so many times."""
    there = Counter(other.texts)
    places = []
    for place, text in enumerate(side.texts):
        if there[text]:
            there[text] -= 1
        else:
            places.append(place)
    return places
