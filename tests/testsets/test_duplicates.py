"""Questions count as the same by their words, by their ground truths, and by embeddings."""

from __future__ import annotations

import asyncio

import pytest

from evalhouse.tasks.asking.embeddings import HashingEmbedder
from evalhouse.tasks.testsets.near import QuestionIndex
from evalhouse.tasks.testsets.questions import SetQuestion, Span, Turn

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
