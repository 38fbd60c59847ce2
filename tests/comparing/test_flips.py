"""Which verdicts are others: statements, contexts and ratings of two runs, matched by their texts."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.comparing.changes import Flip, find_flips, match_items

Told = tuple[str, str | None, bool | None]  # text, label, supported

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


def tell(base: list[Told], candidate: list[Told], source: str = "answer") -> list[dict[str, Any]]:
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


def test_equal_verdicts_are_no_flips() -> None:
    same: list[Told] = [("It is red.", "TP", True), ("It is big.", "FP", None)]
    assert find(statements=tell(same, same)) == {}
    assert find() == {}


def test_a_label_or_a_support_flips() -> None:
    rows = tell(
        [("It is red.", "TP", True), ("It is big.", "FP", True), ("It is old.", "FP", False)],
        [("It is red.", "FP", True), ("It is big.", "FP", False), ("It is old.", "FP", False)],
    )
    flips = find(statements=rows)["s"]
    assert summarise(flips) == [("flipped", "It is red.", "It is red."), ("flipped", "It is big.", "It is big.")]
    first = flips[0]
    assert first.base is not None
    assert first.candidate is not None
    assert (first.base["label"], first.candidate["label"]) == ("TP", "FP")
    assert (first.base["label_reason"], first.candidate["label_reason"]) == ("TP because", "FP because")


def test_a_statement_in_another_place_or_with_other_spaces_is_the_same() -> None:
    rows = tell(
        [("A stands.", "TP", True), ("B falls.", "FP", True)], [("B  falls.", "FP", True), ("A stands.", "TP", True)]
    )
    assert find(statements=rows) == {}


def test_what_came_and_what_went() -> None:
    rows = tell([("Dogs bark loudly at night.", "TP", True)], [("The sum is 42 euros.", "FP", False)])
    assert summarise(find(statements=rows)["s"]) == [
        ("appeared", None, "The sum is 42 euros."),
        ("vanished", "Dogs bark loudly at night.", None),
    ]


def test_reworded_statements_stand_side_by_side_the_most_alike_first() -> None:
    rows = tell(
        [("The tower is 42 metres high.", "TP", True), ("The tower was built in 1890.", "TP", True)],
        [("The tower is 43 metres high.", "FP", True), ("The tower was built in 1890 .", "TP", True)],
    )
    assert summarise(find(statements=rows)["s"]) == [
        ("reworded", "The tower is 42 metres high.", "The tower is 43 metres high."),
        ("reworded", "The tower was built in 1890.", "The tower was built in 1890 ."),
    ]


def test_a_statement_said_twice_is_matched_once_each() -> None:
    rows = tell([("It is red.", "TP", True)] * 2, [("It is red.", "TP", True)])
    assert summarise(find(statements=rows)["s"]) == [("vanished", "It is red.", None)]


def test_statements_of_the_other_text_are_no_match() -> None:
    rows = [*tell([("It is red.", "TP", True)], []), *tell([], [("It is red.", "TP", True)], source="ground_truth")]
    found = find(statements=rows)["s"]
    assert [(flip.kind, flip.change) for flip in found] == [("answer", "vanished"), ("ground_truth", "appeared")]


def test_chinese_statements_are_matched_by_their_characters() -> None:
    rows = tell([("灯塔高四十二米。", "TP", True)], [("灯塔高四十三米。", "FP", True)])
    assert [change for change, *_ in summarise(find(statements=rows)["s"])] == ["reworded"]


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


_TOLD = st.lists(
    st.tuples(st.sampled_from(["It is red.", "It is reed.", "No."]), st.sampled_from(["TP", "FP", None]),
              st.sampled_from([True, False, None])), max_size=4,
)  # fmt: skip


@given(answer=st.tuples(_TOLD, _TOLD), truth=st.tuples(_TOLD, _TOLD))
def test_what_is_left_out_as_the_same_is_what_would_have_been_found_to_be(
    answer: tuple[list[Told], list[Told]], truth: tuple[list[Told], list[Told]]
) -> None:
    rows = pl.DataFrame([*tell(*answer), *tell(*truth, source="ground_truth")], schema=_STATEMENTS)
    others = {"contexts": pl.DataFrame(schema=_CONTEXTS), "grades": pl.DataFrame(schema=_GRADES)}
    matched = match_items(statements=rows, **others).get("s", [])
    assert find_flips(statements=rows, **others).get("s", []) == [flip for flip in matched if flip.change != "same"]
