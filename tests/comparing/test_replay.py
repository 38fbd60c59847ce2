"""What a replay makes of scores and contexts: the verdict of a move, and which documents differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.comparing.replay import (
    Contexts,
    Move,
    Verdict,
    count_verdicts,
    judge_move,
    list_document_changes,
    name_documents,
)

MOVE = Move(sample_id="q1", metric="factual_f1", before=1.0, after=0.0)
CONTEXTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["", "1", "2", "3"])), max_size=6).map(
    lambda pairs: Contexts(texts=tuple(text for text, _ in pairs), ids=tuple(name for _, name in pairs))
)
GRID = st.sampled_from([number / 8 for number in range(9)])


def make(*texts: str, ids: tuple[str, ...] | None = None) -> Contexts:
    return Contexts(texts=texts, ids=ids or ("",) * len(texts))


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ([1.0, 1.0, 0.9], [0.0, 0.0, 0.1], "retrieval"),
        ([0.0, 0.1, 0.0], [0.0, 0.0, 0.0], "generation"),
        ([0.5, 0.45, 0.55], [0.0, 0.0, 0.0], "both"),
        ([1.0, 0.0, 1.0], [0.0, 0.0, 0.0], "noise"),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0], "noise"),
        (None, [0.0, 0.0, 0.1], "generation"),
        (None, [0.0, 0.0, 0.6], "noise"),
        ([1.0, None, 1.0], [0.0, 0.0, 0.0], "unknown"),
        ([], [], "unknown"),
    ],
)
def test_the_verdict_of_a_move(old: list[float | None] | None, new: list[float | None], verdict: Verdict) -> None:
    assert judge_move(MOVE, old=old, new=new, same_answer=False).verdict == verdict


def test_texts_that_are_the_same_were_moved_by_the_judge() -> None:
    assert judge_move(MOVE, old=None, new=[], same_answer=True).verdict == "judge"


@given(before=GRID, after=GRID, old=st.lists(GRID, min_size=1, max_size=4), new=st.lists(GRID, min_size=1, max_size=4))
def test_a_gain_is_judged_as_the_loss_it_mirrors(
    before: float, after: float, old: list[float], new: list[float]
) -> None:
    """On another scale, or the other way round, the verdict is the same; eighths keep the arithmetic exact."""
    if before == after:
        return
    move = replace(MOVE, before=before, after=after)
    mirrored = replace(MOVE, before=4 - 2 * before, after=4 - 2 * after)
    finding = judge_move(move, old=old, new=new, same_answer=False)
    other = judge_move(mirrored, old=[4 - 2 * x for x in old], new=[4 - 2 * x for x in new], same_answer=False)
    assert (finding.verdict, finding.share) == (other.verdict, pytest.approx(other.share))


@given(old=CONTEXTS, new=CONTEXTS)
def test_each_change_undoes_one_document_and_all_of_them_are_listed(old: Contexts, new: Contexts) -> None:
    changes = list_document_changes(old, new)
    kinds = Counter(change.kind for change in changes)
    assert kinds["dropped"] + kinds["changed"] == (Counter(old.texts) - Counter(new.texts)).total()
    assert kinds["added"] + kinds["changed"] == (Counter(new.texts) - Counter(old.texts)).total()
    assert len({change.arm for change in changes}) == len(changes), "each has a name of its own"
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
    assert [(row.verdict, row.n) for row in shares] == [("retrieval", 2), ("generation", 1), ("both", 1)]
    assert sum(row.share for row in shares) == 1
    assert all(0 < row.ci_low < row.share < row.ci_high < 1 for row in shares)
