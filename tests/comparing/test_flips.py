"""Flipped verdicts: statements, contexts and ratings of two runs, matched by their texts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.comparing.changes import Flip, find_flips
from evalhouse.tasks.comparing.replay import (
    Contexts,
    Move,
    Verdict,
    count_verdicts,
    judge_move,
    list_document_changes,
    name_documents,
)

Statement = tuple[str, str | None, bool | None]  # text, label, supported

_STATEMENTS: dict[str, Any] = {
    "sample_id": pl.String, "of_candidate": pl.Boolean, "source": pl.String, "text": pl.String, "label": pl.String,
    "label_reason": pl.String, "supported": pl.Boolean, "context_ranks": pl.List(pl.Int32),
    "support_reason": pl.String,
}  # fmt: skip
_CONTEXTS: dict[str, Any] = {
    "sample_id": pl.String, "of_candidate": pl.Boolean, "text": pl.String, "context_rank": pl.Int32,
    "useful": pl.Boolean, "reason": pl.String,
}  # fmt: skip
_GRADES: dict[str, Any] = {
    "sample_id": pl.String, "of_candidate": pl.Boolean, "text": pl.String, "rating": pl.Float64,
    "scale_max": pl.Float64, "reason": pl.String,
}  # fmt: skip


def find(
    *,
    statements: list[dict[str, Any]] | None = None,
    contexts: list[dict[str, Any]] | None = None,
    grades: list[dict[str, Any]] | None = None,
) -> dict[str, list[Flip]]:
    return find_flips(
        statements=pl.DataFrame(statements or [], schema=_STATEMENTS),
        contexts=pl.DataFrame(contexts or [], schema=_CONTEXTS),
        grades=pl.DataFrame(grades or [], schema=_GRADES),
    )


def make_rows(base: list[Statement], candidate: list[Statement], source: str = "answer") -> list[dict[str, Any]]:
    """Rows of one sample's statements."""
    return [
        {
            "sample_id": "s", "of_candidate": of_candidate, "source": source, "text": text, "label": label,
            "label_reason": f"{label} because", "supported": supported, "context_ranks": [1] if supported else [],
        }
        for of_candidate, side in ((False, base), (True, candidate))
        for text, label, supported in side
    ]  # fmt: skip


def summarise(flips: list[Flip]) -> list[tuple[str, Any, Any]]:
    return [(flip.change, flip.base and flip.base["text"], flip.candidate and flip.candidate["text"]) for flip in flips]


@pytest.mark.parametrize(
    ("base", "candidate", "flips"),
    [
        ([], [], []),
        ([("It is red.", "TP", True), ("It is big.", "FP", None)],) * 2 + ([],),
        # A label or a support flips.
        (
            [("It is red.", "TP", True), ("It is big.", "FP", True), ("It is old.", "FP", False)],
            [("It is red.", "FP", True), ("It is big.", "FP", False), ("It is old.", "FP", False)],
            [("flipped", "It is red.", "It is red."), ("flipped", "It is big.", "It is big.")],
        ),
        # Another place and other spaces do not matter.
        (
            [("A rises.", "TP", True), ("B falls.", "FP", True)],
            [("B  falls.", "FP", True), ("A rises.", "TP", True)],
            [],
        ),
        (
            [("Dogs bark loudly at night.", "TP", True)],
            [("The sum is 42 euros.", "FP", False)],
            [("appeared", None, "The sum is 42 euros."), ("vanished", "Dogs bark loudly at night.", None)],
        ),
        # The most similar statements are paired first.
        (
            [("The tower is 42 metres high.", "TP", True), ("The tower was built in 1890.", "TP", True)],
            [("The tower is 43 metres high.", "FP", True), ("The tower was built in 1890 .", "TP", True)],
            [
                ("reworded", "The tower is 42 metres high.", "The tower is 43 metres high."),
                ("reworded", "The tower was built in 1890.", "The tower was built in 1890 ."),
            ],
        ),
        ([("It is red.", "TP", True)] * 2, [("It is red.", "TP", True)], [("vanished", "It is red.", None)]),
        (
            [("灯塔高四十二米。", "TP", True)],
            [("灯塔高四十三米。", "FP", True)],
            [("reworded", "灯塔高四十二米。", "灯塔高四十三米。")],
        ),
    ],
)
def test_statements_are_matched_by_text(
    base: list[Statement], candidate: list[Statement], flips: list[tuple[str, str | None, str | None]]
) -> None:
    assert summarise(find(statements=make_rows(base, candidate)).get("s", [])) == flips


def test_statements_of_answer_and_ground_truth_never_match() -> None:
    red: list[Statement] = [("It is red.", "TP", True)]
    rows = [*make_rows(red, []), *make_rows([], red, source="ground_truth")]
    found = find(statements=rows)["s"]
    assert [(flip.kind, flip.change) for flip in found] == [("answer", "vanished"), ("ground_truth", "appeared")]


def test_contexts_flip_move_come_and_go() -> None:
    def row(of_candidate: bool, rank: int, text: str, useful: bool) -> dict[str, Any]:
        return {"sample_id": "s", "of_candidate": of_candidate, "text": text, "context_rank": rank, "useful": useful}

    rows = [
        row(False, 1, "One.", True), row(False, 2, "Two.", False), row(False, 3, "Three.", False),
        row(True, 1, "Two.", False), row(True, 2, "One.", False), row(True, 3, "Four.", True),
    ]  # fmt: skip
    assert summarise(find(contexts=rows)["s"]) == [
        ("moved", "Two.", "Two."),
        ("flipped", "One.", "One."),
        ("appeared", None, "Four."),
        ("vanished", "Three.", None),
    ]


def test_ratings_flip_by_rubric_and_criterion() -> None:
    def row(of_candidate: bool, text: str, rating: float) -> dict[str, Any]:
        return {"sample_id": "s", "of_candidate": of_candidate, "text": text, "rating": rating, "scale_max": 10.0}

    rows = [row(False, "a: x", 7), row(False, "a: y", 3), row(True, "a: x", 7), row(True, "a: y", 10)]
    (flip,) = find(grades=rows)["s"]
    assert (flip.kind, flip.change) == ("rating", "flipped")
    assert (flip.base or {})["rating"] == 3
    assert (flip.candidate or {})["rating"] == 10


MOVE = Move(sample_id="q1", metric="factual_f1", before=1.0, after=0.0)
CONTEXTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["", "1", "2", "3"])), max_size=6).map(
    lambda pairs: Contexts(texts=tuple(text for text, _ in pairs), ids=tuple(name for _, name in pairs))
)


def make(*texts: str, ids: tuple[str, ...] | None = None) -> Contexts:
    return Contexts(texts=texts, ids=ids or ("",) * len(texts))


@pytest.mark.parametrize(("old", "new", "verdict"), [
    ([1.0, 1.0, 0.9], [0.0, 0.0, 0.1], "retrieval"),
    ([0.0, 0.1, 0.0], [0.0, 0.0, 0.0], "generation"),
    ([0.5, 0.45, 0.55], [0.0, 0.0, 0.0], "both"),
    ([1.0, 0.0, 1.0], [0.0, 0.0, 0.0], "noise"),
    ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0], "noise"),
    (None, [0.0, 0.0, 0.1], "generation"),
    (None, [0.0, 0.0, 0.6], "noise"),
    ([1.0, None, 1.0], [0.0, 0.0, 0.0], "unknown"),
    ([], [], "unknown"),
])  # fmt: skip
def test_the_verdict_of_a_move(old: list[float | None] | None, new: list[float | None], verdict: Verdict) -> None:
    assert judge_move(MOVE, old=old, new=new, same_answer=False).verdict == verdict


def test_texts_that_are_the_same_were_moved_by_the_judge() -> None:
    assert judge_move(MOVE, old=None, new=[], same_answer=True).verdict == "judge"


@given(old=CONTEXTS, new=CONTEXTS)
def test_each_change_undoes_one_document_and_all_of_them_are_listed(old: Contexts, new: Contexts) -> None:
    changes = list_document_changes(old, new)
    kinds = Counter(change.kind for change in changes)
    assert kinds["dropped"] + kinds["changed"] == (Counter(old.texts) - Counter(new.texts)).total()
    assert kinds["added"] + kinds["changed"] == (Counter(new.texts) - Counter(old.texts)).total()
    assert len({change.arm for change in changes}) == len(changes), "each has a separate name"
    for change in changes:
        side = old if change.is_of_old else new
        assert len(change.contexts.texts) == len(change.contexts.ids) == len(side.texts) - (change.kind != "changed")
        gone = Counter(side.texts) - Counter(change.contexts.texts)
        assert gone == Counter([side.texts[change.rank - 1]])


def test_documents_are_named_by_id_or_by_their_words() -> None:
    old = make("Right.", "Filler.", ids=("a#1", "f#1"))
    new = make("Wrong.", "Other.", ids=("a#1", "o#1"))
    changes = list_document_changes(old, new)
    assert {(change.kind, change.name) for change in changes} == {
        ("changed", "a#1"), ("dropped", "f#1"), ("added", "o#1"),
    }  # fmt: skip
    scores = {change.arm: 1.0 if change.kind == "changed" else 0.0 for change in changes}
    scores["dropped2"] = 1.0  # without it the old contexts still bring the score back
    assert name_documents(MOVE, changes, scores, max_tried=8) == (("a#1 (changed)",), None)
    (change,) = list_document_changes(make("Right.", "Filler."), make("Filler."))
    assert name_documents(MOVE, [change], {change.arm: 0.0}, max_tried=8) == (("'Right.' (dropped)",), None)


def test_why_no_document_is_named() -> None:
    changes = list_document_changes(make("a", "b", "c"), make())
    kept = dict.fromkeys((change.arm for change in changes), 1.0)
    assert name_documents(MOVE, changes, kept, max_tried=8) == ((), "no single document")
    assert name_documents(MOVE, changes, kept, max_tried=2) == ((), "no single document of the 2 tried, out of 3")
    assert name_documents(MOVE, changes, {}, max_tried=8) == ((), "not every answer has a score")
    order = list_document_changes(make("a", "b"), make("b", "a"))
    assert name_documents(MOVE, order, {}, max_tried=8) == ((), "the same contexts in another order")


def test_shares_add_up_and_lie_within_their_intervals() -> None:
    olds = ([1.0], [1.0], [0.0], [0.5])
    shares = count_verdicts(judge_move(MOVE, old=old, new=[0.0], same_answer=False) for old in olds)
    assert [(row["verdict"], row["n"]) for row in shares] == [("retrieval", 2), ("generation", 1), ("both", 1)]
    assert sum(row["share"] for row in shares) == 1
    assert all(0 < row["ci_low"] < row["share"] < row["ci_high"] < 1 for row in shares)
