"""What can be wrong with a question of a set, how much that weighs, and what needs neither a judge nor embeddings to
be seen."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Final, Literal, get_args

from evalhouse.tasks.testsets.filters import find_pointing, holds_answer
from evalhouse.tasks.testsets.given import GivenQuestion
from evalhouse.tasks.testsets.near import NearPassages
from evalhouse.tasks.testsets.passages import Document, Language, find_language

FindingName = Literal[
    "contradicted", "unsupported", "conflicting", "answerable", "no_ground_truth", "dead_reference", "leak",
    "duplicate", "ambiguous", "misplaced", "language", "form",
]  # fmt: skip
FINDINGS: Final[tuple[FindingName, ...]] = get_args(FindingName)
Severity = Literal["error", "warning"]
MEANINGS: Final[Mapping[FindingName, str]] = {
    "contradicted": "documents say otherwise than the ground truth",
    "unsupported": "no document bears the ground truth out",
    "conflicting": "two ask the same, and their ground truths say otherwise",
    "answerable": "said to be unanswerable, and a document answers it",
    "no_ground_truth": "without a ground truth, and not marked as unanswerable",
    "dead_reference": "a reference id is neither a document nor a passage",
    "leak": "the question holds its answer",
    "duplicate": "another question asks the same",
    "ambiguous": "other documents answer it otherwise than the ground truth",
    "misplaced": "the references do not bear the ground truth out, other documents do",
    "language": "question, ground truth and documents are not in one language",
    "form": "the question speaks of the text that it was made from",
}
_WARNINGS: Final = frozenset({"ambiguous", "misplaced", "language", "form"})
_CHOICE = re.compile(r"\bor\b|还是", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_HAN = re.compile("[\u3400-\u9fff]")
_LEAST_WORDS, _LEAST_HAN = 4, 4
_INSIDE: Final = frozenset("#:/|@")


def weigh(name: FindingName) -> Severity:
    """How much a finding weighs: an error makes scores wrong, a warning may be meant so."""
    return "warning" if name in _WARNINGS else "error"


@dataclass(frozen=True, kw_only=True)
class SetCheck:
    """One check of a question: a finding where it was not passed. `others` are questions, documents or passages that it
    is about, `call_id` the call that says so, where one was needed."""

    name: FindingName
    passed: bool
    detail: str
    others: tuple[str, ...] = ()
    call_id: str | None = None


class Base:
    """What is known of a knowledge base by name: its documents, their passages and languages."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = {document.document_id: document for document in documents}
        self.passages = {passage.passage_id: passage for document in documents for passage in document.passages}
        self.languages = {passage.language for passage in self.passages.values()}

    @cached_property
    def near(self) -> NearPassages:
        """The index of its passages, made when it is first asked for."""
        return NearPassages(list(self.passages.values()))

    def find_documents(self, question: GivenQuestion) -> set[str]:
        """The documents that a question names, by themselves or by passages of theirs."""
        names = [*question.reference_context_ids, *(span.passage_id for span in question.spans)]
        found = {self.passages[name].document_id for name in names if name in self.passages}
        return found | (self.documents.keys() & names) | (
            self.documents.keys() & {span.document_id for span in question.spans}
        )  # fmt: skip


def check_alone(question: GivenQuestion, base: Base | None) -> Iterator[SetCheck]:
    """What is seen of a question alone, with the names of a knowledge base where there is one."""
    pointing = find_pointing(question.question)
    yield SetCheck(
        name="form",
        passed=pointing is None,
        detail=f"it speaks of what it was made from: {pointing!r}" if pointing else "it can be asked without a text",
    )
    has_truth = question.ground_truth is not None or question.is_unanswerable
    missing = "there is no ground truth, and it is not marked as unanswerable"
    yield SetCheck(name="no_ground_truth", passed=has_truth, detail="it has one" if has_truth else missing)
    if question.ground_truth is not None:
        asked = " ".join((*(turn.content for turn in question.conversation), question.question))
        # Of two that a question names, one is the answer.
        leaks = holds_answer(asked, question.ground_truth) and not _CHOICE.search(question.question)
        detail = f"the question says all that the ground truth says: {question.ground_truth!r:.200}"
        yield SetCheck(name="leak", passed=not leaks, detail=detail if leaks else "it does not hold its answer")
    yield _check_languages(question, base)
    if base is not None and question.reference_context_ids:
        yield _check_references(question, base)


def _check_languages(question: GivenQuestion, base: Base | None) -> SetCheck:
    of_question = _judge_language(question.question)
    of_truth = _judge_language(question.ground_truth or "")
    if of_question and of_truth and of_question != of_truth:
        chinese, other = ("question", "ground truth") if of_question == "zh" else ("ground truth", "question")
        return SetCheck(name="language", passed=False, detail=f"the {chinese} is in Chinese, the {other} is not")
    if base is not None and of_question and of_question not in base.languages:
        documents = "none of the documents is" if of_question == "zh" else "all documents are"
        asked = "in Chinese" if of_question == "zh" else "not in Chinese"
        return SetCheck(name="language", passed=False, detail=f"the question is {asked}, {documents}")
    return SetCheck(name="language", passed=True, detail="question, ground truth and documents agree")


def _judge_language(text: str) -> Language | None:
    """The language of a text; None for one that is too short, such as a name or a number."""
    n_han = len(_HAN.findall(text))
    is_long = len(_WORD.findall(text)) >= _LEAST_WORDS or n_han >= _LEAST_HAN
    return find_language(text) if is_long else None


def _check_references(question: GivenQuestion, base: Base) -> SetCheck:
    dead = [name for name in question.reference_context_ids if not (name in base.passages or name in base.documents)]
    if not dead:
        return SetCheck(name="dead_reference", passed=True, detail=f"{len(question.reference_context_ids)} are there")
    detail = "; ".join(f"{name}: {_explain_dead(name, base)}" for name in dead)
    return SetCheck(name="dead_reference", passed=False, detail=detail, others=tuple(dead))


def _explain_dead(name: str, base: Base) -> str:
    cuts = [place for place, letter in enumerate(name) if letter in _INSIDE]
    if inside := next((name[:place] for place in reversed(cuts) if name[:place] in base.documents), None):
        return f"no passage of {inside} has that id"
    close = get_close_matches(name, _list_names(base, name), n=1, cutoff=0.8)
    return f"neither a document nor a passage{f'; {close[0]} is like it' if close else ''}"


def _list_names(base: Base, name: str) -> Collection[str]:
    return base.passages if "#" in name else base.documents
