"""The page on which a person decides on the questions of a test set: the page for labelling verdicts, with the question
and its ground truth on one side and the passages that they rest on, spans lit, on the other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from evalhouse.flows.report.page import pack, render_page
from evalhouse.tasks.testsets.decisions import LABELS, AskedQuestions, Subject
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import Span

_MEANINGS: Final = ("right, and worth asking", "nearly: write it as it should be", "not worth asking, or wrong")


def build_question_page(asked: AskedQuestions, reviewer: str) -> str:
    """The page as text; `reviewer` is the name it begins with, empty for none."""
    return render_page(
        "review.html",
        styles=("report.css", "review.css"),
        scripts=("data.js", "answers.js", "questions.js", "review.js"),
        title=f"Questions of {asked.path.name}",
        origin=f"version {asked.test_set.set_hash}",
        about="questions",
        n=len(asked.subjects),
        reviewer=reviewer,
        is_sent=False,
        packed=pack(_collect(asked)),
    )


def _collect(asked: AskedQuestions) -> dict[str, Any]:
    """What the script reads."""
    return {
        "export_id": f"questions-{asked.test_set.set_hash}",
        "set": str(asked.path),
        "set_hash": asked.test_set.set_hash,
        "samples": [],
        "items": [_describe(subject, asked.passages) for subject in asked.subjects],
    }


def _describe(subject: Subject, passages: Mapping[str, Passage]) -> dict[str, Any]:
    question, before = subject.question, subject.before
    old = {"ground_truth": before.ground_truth, "spans": [_quote(span) for span in before.spans]} if before else None
    return {
        "item_hash": subject.item_hash,
        "question_id": question.id,
        "kind": question.kind,
        "language": question.language,
        "question": question.question,
        "ground_truth": question.ground_truth,
        "conversation": [{"role": turn.role, "content": turn.content} for turn in question.conversation],
        "origin": subject.proposal.change if subject.proposal else "new",
        "why": subject.proposal.detail if subject.proposal else None,
        "before": old,
        "passages": list(light_spans(question.spans, passages)),
        "choices": [
            {"label": label, "meaning": meaning} for label, meaning in zip(LABELS, _MEANINGS, strict=True)
        ],
    }  # fmt: skip


def _quote(span: Span) -> dict[str, str]:
    return {"name": span.passage_id, "text": span.text}


def light_spans(spans: Iterable[Span], passages: Mapping[str, Passage]) -> Iterator[dict[str, Any]]:
    """Each passage that spans stand in: its name, and its text in parts of which every second one is a span. Of a
    passage that is not at hand, or reads otherwise now, the spans alone."""
    by_passage: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        by_passage.setdefault(span.passage_id, []).append(span)
    for passage_id, of_passage in by_passage.items():
        passage = passages.get(passage_id)
        headings = " > ".join(passage.headings) if passage else ""
        name = f"{passage_id} · {headings}" if headings else passage_id
        yield {"name": name, "parts": _cut(of_passage, passage)}


def _cut(spans: Sequence[Span], passage: Passage | None) -> list[str]:
    if passage is None or not all(_stands(span, passage) for span in spans):
        return [part for place, span in enumerate(spans) for part in (" … " if place else "", span.text)]
    parts, at = [], 0
    for span in spans:
        start = span.start - passage.start
        if start >= at:  # of two that share words the first is lit
            parts += [passage.text[at:start], span.text]
            at = start + len(span.text)
    return [*parts, passage.text[at:]]


def _stands(span: Span, passage: Passage) -> bool:
    start = span.start - passage.start
    return start >= 0 and passage.text[start : start + len(span.text)] == span.text
