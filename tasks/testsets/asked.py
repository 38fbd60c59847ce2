"""The questions of a set that people are asked about: proposals of a refresh first, then those nobody has looked at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evalhouse.tasks.reviews.label_files import ReviewError
from evalhouse.tasks.testsets.changes import restore_question
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import SetQuestion, read_question, write_conversation
from evalhouse.tasks.testsets.sets import Change, TestSet

LABELS: Final = ("keep", "mend", "drop")
"""What a person can say of a question."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A question as it would be in the set when it is kept; `proposal` is the change that brings it, None for one that
    is in the set already."""

    question: SetQuestion
    proposal: Change | None = None

    @property
    def item_hash(self) -> str:
        """What tells whether a decision is about this very content."""
        return f"{self.question.id}-{self.question.content_hash}"

    @property
    def before(self) -> SetQuestion | None:
        """The question as it was before the proposal."""
        return read_question(self.proposal.before) if self.proposal else None


@dataclass(frozen=True, kw_only=True)
class AskedQuestions:
    """What people are asked about a set: `passages` are those of its documents by id, as far as they are at hand.

    `n_open` questions wait for a person, of which `subjects` are the first; `n_decided` have been decided on.
    """

    path: Path
    test_set: TestSet
    subjects: tuple[Subject, ...]
    passages: Mapping[str, Passage]
    n_open: int
    n_decided: int


def list_subjects(test_set: TestSet) -> Iterator[Subject]:
    """All that a person can decide on, proposals first."""
    for change in test_set.manifest.proposals:
        yield Subject(question=restore_question(change), proposal=change)
    for question in test_set.questions:
        yield Subject(question=question)


def pick_questions(
    path: Path, test_set: TestSet, documents: Sequence[Document], *, n: int, again: bool
) -> AskedQuestions:
    """The first `n` that wait for a person; with `again` also those that were decided on. ReviewError for none."""
    subjects = list(list_subjects(test_set))
    # A question of a proposal may have been accepted as it was before.
    open_ones = [one for one in subjects if again or one.proposal or one.question.decision is None]
    if not open_ones:
        raise ReviewError(f"all {len(subjects)} questions of {path} have been decided on; --again asks once more")
    return AskedQuestions(
        path=path,
        test_set=test_set,
        subjects=tuple(open_ones[:n]),
        passages={passage.passage_id: passage for document in documents for passage in document.passages},
        n_open=len(open_ones),
        n_decided=len(subjects) - sum(1 for one in subjects if one.proposal or one.question.decision is None),
    )


def list_question_rows(asked: AskedQuestions, *, reviewer: str) -> list[dict[str, Any]]:
    """What is asked as lines of a table; a person who mends a question writes into `question` and `ground_truth`."""
    return [_describe(asked, subject, reviewer) for subject in asked.subjects]


def _describe(asked: AskedQuestions, subject: Subject, reviewer: str) -> dict[str, Any]:
    question, before = subject.question, subject.before
    return {
        "label": None,
        "labels": ", ".join(LABELS),
        "note": None,
        "reviewer": reviewer or None,
        "kind": question.kind,
        "conversation": write_conversation(question.conversation) or None,
        "question": question.question,
        "ground_truth": question.ground_truth,
        "ground_truth_before": before.ground_truth if before else None,
        "why": subject.proposal.detail if subject.proposal else None,
        "spans": [span.text for span in question.spans],
        "set": str(asked.path),
        "set_hash": asked.test_set.set_hash,
        "question_id": question.id,
        "item_hash": subject.item_hash,
    }
