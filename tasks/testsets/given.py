"""A test set as it is checked: any dataset that a run reads, one of ours or one that a person wrote.

What a set of ours has beside the columns of a dataset (kind, spans, what was said before) is read where it is there.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.testsets.passages import Language, find_language
from evalhouse.tasks.testsets.questions import KINDS, UNANSWERABLE, QuestionKind, Span, Turn
from evalhouse.warehouse.rows.samples import plain_turns

_RULES: Final[tuple[tuple[QuestionKind, re.Pattern[str]], ...]] = (
    (
        "comparison",
        re.compile(
            r"\b(?:compare|compared|comparison|differ|differs|difference|differences|versus|vs|than)\b"
            r"|\bwhich (?:of|one)\b|区别|不同|相比|比较|哪一?[个种]更|更[大小多少高低长短早晚快慢]",
            re.IGNORECASE,
        ),
    ),
    (
        "procedure",
        re.compile(
            r"\bhow (?:do|can|should|to|does one)\b|\b(?:steps?|procedure)\b|如何|怎样|怎么|步骤|流程", re.IGNORECASE
        ),
    ),
    (
        "number",
        re.compile(
            r"\bhow (?:many|much|long|often|far|old|big|high|deep|wide|fast)\b|\bwhen\b|\bwhat (?:time|year|date)\b"
            r"|\bat what\b|几|多少|多久|多长|多大|多高|何时|什么时候|哪[一]?[年天日月]",
            re.IGNORECASE,
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class GivenQuestion:
    """A question as it stands in a set; `given_kind` is one of evalhouse's kinds where the set says it."""

    id: str
    question: str
    ground_truth: str | None
    reference_context_ids: tuple[str, ...] = ()
    given_kind: QuestionKind | None = None
    marked_unanswerable: bool = False
    spans: tuple[Span, ...] = ()
    conversation: tuple[Turn, ...] = ()

    @property
    def is_unanswerable(self) -> bool:
        """Whether the set says that nothing answers it."""
        return self.marked_unanswerable or self.given_kind == UNANSWERABLE

    @property
    def kind(self) -> QuestionKind:
        """As the set says, else by its words: a rule of thumb."""
        return self.given_kind or self._guess_kind()

    @property
    def language(self) -> Language:
        """By its letters."""
        return find_language(self.question)

    def _guess_kind(self) -> QuestionKind:
        if self.is_unanswerable:
            return UNANSWERABLE
        if self.conversation:
            return "conversational"
        kind = next((kind for kind, words in _RULES if words.search(self.question)), None)
        if kind is None and len(set(self.reference_context_ids)) > 1:
            return "several"
        return kind or "fact"


def read_given(
    source: str, *, mapping: Mapping[str, str], encoding: str | None = None
) -> tuple[list[GivenQuestion], str]:
    """The questions of a set in its order, and the hash of its content; raises DatasetError."""
    staged = stage_dataset(source, mapping=mapping, limit=None, encoding=encoding)
    try:
        samples = staged.staging.read_between(1, staged.n_samples)
    finally:
        staged.staging.discard()
    questions = [
        take_given(
            sample_id=sample.sample_id,
            question=sample.question,
            ground_truth=sample.ground_truth,
            reference_context_ids=sample.reference_context_ids,
            beside={**sample.metadata, "conversation": plain_turns(sample.conversation)},
        )
        for sample in samples
    ]
    return questions, staged.content_hash


def take_given(
    *,
    sample_id: str,
    question: str,
    ground_truth: str | None,
    reference_context_ids: Sequence[str] | None,
    beside: Mapping[str, Any],
) -> GivenQuestion:
    """A question from the columns of a dataset and what stands beside them."""
    kind = beside.get("kind")
    return GivenQuestion(
        id=sample_id,
        question=question,
        ground_truth=ground_truth if (ground_truth or "").strip() else None,
        reference_context_ids=tuple(reference_context_ids or ()),
        given_kind=next((known for known in KINDS if known == kind), None),
        marked_unanswerable=beside.get("answerable") is False,
        spans=tuple(_read_spans(beside.get("spans"))),
        conversation=tuple(_read_turns(beside.get("conversation"))),
    )


def _read_spans(value: object) -> Iterator[Span]:
    """Spans as evalhouse writes them; what has another shape is another column of that name."""
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict) and isinstance(one.get("text"), str) and isinstance(one.get("passage_id"), str):
            start: Any = one.get("start")
            yield Span(
                document_id=str(one.get("document_id") or ""),
                passage_id=one["passage_id"],
                text=one["text"],
                start=start if isinstance(start, int) else 0,
            )


def _read_turns(value: object) -> Iterator[Turn]:
    for one in value if isinstance(value, list) else ():
        content = one.get("content", one.get("text")) if isinstance(one, dict) else None
        if isinstance(content, str) and one["role"] in ("user", "assistant"):
            yield Turn(role=one["role"], content=content)
