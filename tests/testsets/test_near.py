"""Passages near a text, the overlap of two texts, and the place of an older sentence in a newer text."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.asking.embeddings import HashingEmbedder
from evalhouse.tasks.testsets.near import NearPassages, QuestionIndex, align, find_quote, overlap
from evalhouse.tasks.testsets.passages import Passage, cut_markdown, find_sentences
from evalhouse.tasks.testsets.questions import SetQuestion, Span, Turn

HANDBOOK = """# Returns

Goods may be sent back within 30 days of delivery. The customer pays the postage.

# Leave

New staff get 24 days of annual leave. It is asked for in the portal.

# 年假

新员工每年有 24 天年假，可以在系统中申请。

# 退货

商品可以在三十天之内退货，邮费由顾客承担。
"""
PASSAGES = cut_markdown("handbook.md", HANDBOOK).passages
NEAR = NearPassages(PASSAGES)


def find(text: str, n: int = 9, exclude: set[str] | frozenset[str] = frozenset()) -> list[str]:
    return [passage.headings[0] for passage in NEAR.find(text, n, exclude)]


def test_the_nearest_passages_come_first() -> None:
    assert find("Who pays the postage of goods sent back?", 1) == ["Returns"]
    assert find("How many days of annual leave?") == ["Leave", "Returns"]
    assert find("新员工的年假有多少天？", 1) == ["年假"]
    assert find("退货的邮费谁承担") == ["退货"]


def test_passages_without_shared_words_or_excluded_are_not_near() -> None:
    assert find("Quarterly revenue?") == []
    assert find("the of and") == []
    assert find("") == []
    assert find("days", 0) == []
    assert find("How many days of annual leave?", exclude={"handbook.md#leave", "elsewhere"}) == ["Returns"]
    assert NearPassages([]).find("days", 3) == []


def test_inflected_words_and_headings_count() -> None:
    assert find("returning") == ["Returns"]
    assert find("deliveries", 1) == ["Returns"]


@given(st.lists(st.sampled_from(["goods", "leave", "30", "年假", "退货", "portal", "postage"]), max_size=6))
def test_each_passage_is_nearest_to_itself(words: list[str]) -> None:
    for passage in PASSAGES:
        assert NEAR.find(passage.text + " " + " ".join(words[:1]), 1)[0] is passage


def test_rare_words_count_more_and_words_without_a_passage_do_not() -> None:
    cranes = "# Bertha\n\nThe crane Bertha lifts.\n\n# Conrad\n\nThe crane Conrad lifts.\n\n# Lock\n\nIt opens.\n"
    near = NearPassages(cut_markdown("d", cranes).passages)
    bertha, conrad, lock = near.rate("Does the crane Bertha lift, or Zeppelin?")
    assert bertha > 2 * conrad > lock == 0
    assert near.rate("Zeppelin").tolist() == [0, 0, 0]


@given(st.text("ab 年假.", max_size=30), st.text("ab 年假.", max_size=30))
def test_overlap_is_a_share_and_the_same_both_ways(text: str, other: str) -> None:
    share = overlap(text, other)
    assert 0 <= share <= 1
    assert share == overlap(other, text)
    assert overlap(text, text) == (1 if re.search(r"\w", text) else 0)


def test_overlap_counts_words_in_a_row() -> None:
    text = "Goods may be sent back within 30 days of delivery."
    assert overlap(text, "goods may be sent back, within 30 days of delivery") == 1
    assert 0.3 < overlap(text, text.replace("30", "14")) < 0.7
    assert overlap(text, "delivery of days 30 within back sent be may goods") == 0
    assert overlap("新员工每年有24天年假", "新员工每年有 24 天年假。") == 1
    assert overlap("", text) == 0


@pytest.mark.parametrize(
    ("quote", "text", "found"),
    [
        ("within 30 days", "Sent back within\n30  days of it.", "within\n30  days"),
        ("24 天年假", "新员工每年有24天\n年假。", "24天\n年假"),
        ('the "portal" – now', "use the “portal” — now!", "the “portal” — now"),
        ("30 days", "within **30** days", "30** days"),
        ("30 days", "130 days, then 30 days", "30 days"),
        ("is 1", "is 1,200 or is 1.", "is 1"),
        ("days", "daysish", None),
        ("14 days", "within 30 days", None),
        ("", "within", None),
    ],
)
def test_quotation_is_found_with_other_spacing(quote: str, text: str, found: str | None) -> None:
    place = find_quote(quote, text)
    assert (text[place.start : place.end] if place else None) == found
    if quote == "is 1" and place:
        assert place.start == len("is 1,200 or ")


CHANGED = [
    (
        "Goods may be sent back within 30 days.",
        "We like you. Goods may be returned within 14 days of delivery. Postage is free.",
        "Goods may be returned within 14 days of delivery.",
    ),
    ("新员工每年有 24 天年假。", "病假另算。新员工每年享有25天年假。请在系统中申请。", "新员工每年享有25天年假。"),
    ("| Germany | free |",
     "| land | postage |\n| --- | --- |\n| Germany | 5 EUR |\n| France | 9 EUR |",
     "| Germany | 5 EUR |"),
    ("within 30 days", "Goods may be\nsent back within 14 days of delivery. Postage is free.",
     "Goods may be\nsent back within 14 days of delivery."),
    ("A long one that says much. And one more that says as much again.", "A long one that says much.",
     "A long one that says much."),
]  # fmt: skip


@pytest.mark.parametrize(("span", "text", "found"), CHANGED)
def test_a_changed_span_is_found_with_its_whole_sentences(span: str, text: str, found: str) -> None:
    aligned = align(span, text)
    assert aligned is not None
    assert text[aligned.start : aligned.end] == found
    assert 0.5 < aligned.score < 1


def test_unlike_texts_score_low() -> None:
    aligned = align("Goods may be sent back within 30 days.", "Our canteen opens at noon. It serves soup.")
    assert aligned is not None
    assert aligned.score < 0.55
    assert align("", "text") is None
    assert align("text", " ") is None


@given(st.integers(0, len(PASSAGES) - 1), st.data())
def test_unchanged_span_is_found_at_its_place(number: int, data: st.DataObject) -> None:
    passage: Passage = PASSAGES[number]
    sentence = data.draw(st.sampled_from(find_sentences(passage.text)))
    aligned = align(passage.text[sentence.start : sentence.stop], f"Before that. {passage.text}")
    assert aligned == (sentence.start + 13, sentence.stop + 13, 1.0)


@given(st.text("ab \n.|-。年", max_size=40), st.text("ab \n.|-。年", max_size=20))
def test_a_stretch_lies_within_the_text(text: str, span: str) -> None:
    aligned = align(span, text)
    assert aligned is None or (0 <= aligned.start < aligned.end <= len(text) and 0 <= aligned.score <= 1)


TICKET = "A night ticket for the ferry costs 14 crowns."


def make(question: str, truth: str | None = TICKET, *, passage: str = "p1", turns: tuple[str, ...] = ()) -> SetQuestion:
    spans = (Span(document_id="d", passage_id=passage, text=truth, start=0),) if truth else ()
    return SetQuestion(
        id=question, question=question, ground_truth=truth, reference_context_ids=("d",), language="en", spans=spans,
        kind="fact" if truth else "unanswerable",
        conversation=tuple(Turn(role="user", content=turn) for turn in turns),
    )  # fmt: skip


FIRST = make("What does a night ticket for the ferry cost?")


@pytest.mark.parametrize(
    "other",
    [
        make("what does a night ticket for the ferry cost", "Fourteen."),
        make("How much do I have to pay on the ferry at night?", "A night ticket, for the ferry: costs 14 crowns!"),
        make(
            "What does a night ticket for this ferry cost?",
            "A night ticket for the ferry costs 14 crowns",
            passage="p2",
        ),
    ],
)
def test_same_question_is_found_in_other_words(other: SetQuestion) -> None:
    assert asyncio.run(QuestionIndex([FIRST]).find_twin(other, HashingEmbedder())) == FIRST.id


@pytest.mark.parametrize(
    "other",
    [
        make("What does a day ticket for the ferry cost?", "A day ticket for the ferry costs 9 crowns."),
        make("Who sells tickets at the north pier?", TICKET, passage="p2"),
        make("What does a night ticket for the ferry cost?", "It costs 14 crowns.", turns=("Hello", "Hello")),
        make("Is the ferry heated?", None),
    ],
)
def test_other_questions_are_not_twins(other: SetQuestion) -> None:
    assert asyncio.run(QuestionIndex([FIRST]).find_twin(other, HashingEmbedder())) is None


def test_two_unanswerable_questions_can_be_the_same() -> None:
    first, other = make("What does a dog cost on the ferry?", None), make("What does a dog cost on this ferry?", None)
    assert asyncio.run(QuestionIndex([first]).find_twin(other, HashingEmbedder())) == first.id
