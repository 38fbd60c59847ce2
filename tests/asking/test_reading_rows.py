"""The rows of a `fused` reply: the content of each cell, the source of its reason, and missing cells."""

from typing import Any

import orjson
import pytest

from evalhouse.tasks.asking.verdicts import Verdict, Verdicts, read_verdicts
from evalhouse.tasks.judge.protocol import UnusableReply

ALLOWED = {
    "A1": ("TP", "FP"), "supports A1": (), "G1": ("TP", "FN"), "supports G1": (), "C1": ("useful", "not_useful"),
}  # fmt: skip
CONTEXTS = ("C1", "C2", "C3", "T1")
SENT = (*CONTEXTS, "A1", "A2", "G1", "G2")
WHOLE = (["A1", "G1 G2", "TP", "C1 C2"], ["G1", "A1 lacks the year.", "FN", "none: No year."], ["C1", "G1", "useful"])


def read(*rows: Any, asked: Any = ALLOWED) -> Verdicts:  # noqa: ANN401
    return read_verdicts(orjson.dumps({"verdicts": rows}).decode(), asked, CONTEXTS, sent=SENT)


def test_a_row_gives_the_verdicts_of_its_item_each_with_what_it_rests_on() -> None:
    verdicts = read(*WHOLE)
    assert (verdicts.missing, verdicts.problems) == ((), ())
    assert verdicts.by_id == {
        "A1": Verdict(reason="G1, G2", label="TP"),
        "supports A1": Verdict(reason="C1, C2", contexts=("C1", "C2")),
        "G1": Verdict(reason="A1 lacks the year.", label="FN"),
        "supports G1": Verdict(reason="No year."),
        "C1": Verdict(reason="G1", label="useful"),
    }


@pytest.mark.parametrize(
    ("cell", "alone", "together", "reason"),
    [
        ("C2", ("C2",), (), "C2"),
        ("[C2], [C1]", ("C2", "C1"), (), "C2, C1"),
        ("C1、T1", ("C1", "T1"), (), "C1, T1"),
        ("C1+C3", (), ("C1", "C3"), "C1 + C3"),
        ("C1 + T1", (), ("C1", "T1"), "C1 + T1"),
        ("C2 C1+C3", ("C2",), (), "C2"),
        ("C1+C2, C2+C3", (), ("C1", "C2"), "C1 + C2"),
        ("C1: it gives the year", ("C1",), (), "it gives the year"),
        ("none: No context gives the year: none.", (), (), "No context gives the year: none."),
        ("None：没有年份", (), (), "没有年份"),
    ],
)
def test_the_last_cell_names_contexts_that_support_alone_or_joined_or_none(
    cell: str, alone: tuple[str, ...], together: tuple[str, ...], reason: str
) -> None:
    verdicts = read(["A1", "G1", "TP", cell], asked={"supports A1": ()})
    assert verdicts.by_id == {"supports A1": Verdict(reason=reason, contexts=alone, together=together)}


@pytest.mark.parametrize(
    ("row", "lost", "why"),
    [
        (["A1", "G1", "TP", "C1 supports it"], "supports A1", "no list of contexts"),
        (["A1", "G1", "TP", ""], "supports A1", "no list of contexts"),
        (["A1", "G1", "TP", "none"], "supports A1", "neither evidence nor a reason"),
        (["A1", "G1", "TP", "none:  "], "supports A1", "neither evidence nor a reason"),
        (["A1", "G1", "TP", "C9"], "supports A1", "names the context 'C9', which was not given"),
        (["A1", "G1", "TP", "G1"], "supports A1", "names the context 'G1', which was not given"),
        (["A1", "G1", "FN", "C1"], "A1", "has the label 'FN', allowed: FP, TP"),
        (["A1", "", "TP", "C1"], "A1", "neither evidence nor a reason"),
        (["A1", "-", "TP", "C1"], "A1", "neither evidence nor a reason"),
        (["A1", "G9", "TP", "C1"], "A1", "rests on 'G9', which is not one of G1, G2"),
        (["A1", "A2", "TP", "C1"], "A1", "rests on 'A2', which is not one of G1, G2"),
        (["A1", "C1+C2", "TP", "C1"], "A1", "rests on 'C1', which is not one of G1, G2"),
        (["A1", "G1", "TP", "none: G2"], "supports A1", "rests on 'G2', which is not one of C1, C2, C3, T1"),
    ],
)
def test_empty_cell_counts_as_missing_and_the_other_verdict_is_kept(row: list[str], lost: str, why: str) -> None:
    verdicts = read(row, asked={"A1": ("TP", "FP"), "supports A1": ()})
    assert verdicts.missing == (lost,)
    assert set(verdicts.by_id) == {"A1", "supports A1"} - {lost}
    assert why in verdicts.problems[0]


@pytest.mark.parametrize(
    "row", [["A1", "G1"], ["A1", "G1", "TP", "C1", "C2"], ["A1", "G1", "TP", ["C1"]], [], [1, 2, 3]]
)
def test_invalid_rows_are_requested_again(row: list[Any]) -> None:
    verdicts = read(row, WHOLE[1], WHOLE[2])
    assert verdicts.missing == ("A1", "supports A1")
    assert "3 cells for a context, 4 for a statement" in verdicts.problems[0]


def test_a_cell_that_was_not_asked_for_gives_no_verdict() -> None:
    asked = {"A1": ("TP", "FP"), "supports G1": ()}
    verdicts = read(["A1", "G1", "TP", "-"], ["G1", "-", "-", "C1"], asked=asked)
    assert (set(verdicts.by_id), verdicts.problems) == (set(asked), ())


def test_an_item_with_two_rows_has_no_verdict() -> None:
    verdicts = read(*WHOLE, ["A1", "Not in any G item.", "FP", "C3"])
    assert verdicts.missing == ("A1", "supports A1")
    with pytest.raises(UnusableReply, match="A1 came more than once"):
        read(WHOLE[0], WHOLE[0], asked={"A1": ("TP", "FP")})
