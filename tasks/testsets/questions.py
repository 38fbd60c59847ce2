"""The questions of a test set: what one holds, and how it stands in a file that `evalhouse run` reads as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.testsets.passages import Language, Passage

QuestionKind = Literal["fact", "number", "procedure", "several", "comparison", "conversational", "unanswerable"]
KINDS: Final[tuple[QuestionKind, ...]] = get_args(QuestionKind)
UNANSWERABLE: Final = "unanswerable"
Decision = Literal["accepted", "mended"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Words of a document that a ground truth rests on: `document.text[start : start + len(text)]`."""

    document_id: str
    passage_id: str
    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Something said before the question."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, kw_only=True)
class SetQuestion:
    """A question of a test set. One that the documents do not answer has no ground truth and no spans.

    `reference_context_ids` are the documents, or the passages of a table, that a retriever should find. `decision` is
    what a person last said of it, with who and when (UTC); None for one that nobody has looked at.
    """

    id: str
    question: str
    ground_truth: str | None
    reference_context_ids: tuple[str, ...]
    kind: QuestionKind
    language: Language
    spans: tuple[Span, ...] = ()
    conversation: tuple[Turn, ...] = ()
    decision: Decision | None = None
    reviewer: str | None = None
    reviewed_at: str | None = None

    @cached_property
    def question_hash(self) -> str:
        """16 hex digits over all it holds but its id. Where in its document a span begins and how it is broken into
        lines does not count: it says the same."""
        spans = [[span.document_id, span.passage_id, "".join(span.text.split())] for span in self.spans]
        row = self.to_row() | ({"spans": spans} if spans else {})
        return hash_json([value for name, value in row.items() if name != "id"], 16)

    @property
    def undecided(self) -> "SetQuestion":
        """The same question before anybody decided on it."""
        return replace(self, decision=None, reviewer=None, reviewed_at=None)

    @property
    def content_hash(self) -> str:
        """The hash of what a person decides on."""
        return self.undecided.question_hash

    def to_row(self) -> dict[str, Any]:
        """The question as a line of a set's file; what it does not have is left out but for the ground truth."""
        row = asdict(self)
        optional = ("conversation", "spans", "reference_context_ids", "decision", "reviewer", "reviewed_at")
        return {name: value for name, value in row.items() if value or name not in optional}


_NAMES = frozenset(field.name for field in fields(SetQuestion))


def read_question(row: Mapping[str, Any]) -> SetQuestion:
    """A line of a set's file that evalhouse wrote; other keys are left out. KeyError, TypeError: it is none."""
    values = {name: value for name, value in row.items() if name in _NAMES}
    return SetQuestion(
        **values
        | {
            "reference_context_ids": tuple(values.get("reference_context_ids") or ()),
            "spans": tuple(Span(**span) for span in values.get("spans") or ()),
            "conversation": tuple(Turn(**turn) for turn in values.get("conversation") or ()),
        }
    )


def make_question_id(question: str, conversation: Sequence[Turn]) -> str:
    """The id of a new question, which it keeps whatever becomes of its ground truth."""
    return f"q-{hash_json([question, [turn.content for turn in conversation]], 10)}"


def show_passage(passage: Passage, words: str | None = None) -> str:
    """A passage, or some words of it, as it is put to a judge: under its headings, which are one line."""
    heading = " > ".join(passage.headings) or passage.document_id
    return f"{' '.join(heading.split())}\n{passage.text if words is None else words}"


def write_conversation(turns: Sequence[Turn]) -> str:
    """What was said before a question, a line each."""
    return "\n".join(f"{turn.role}: {' '.join(turn.content.split())}" for turn in turns)


def write_asked(question: str, conversation: Sequence[Turn]) -> str:
    """A question with what was said before it, where the two are asked as one."""
    before = write_conversation(conversation)
    return f"{before}\nuser: {question}" if before else question
